"""Run a training task: claim a job, run its trainer, report events, obey the server's commands.

`supervise` is the worker's main function; read it from top to bottom.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure, Outcome
from tunesmith_worker.rundir.errors import (
    RunError,
    disk_full,
    error_text,
    is_disk_full,
    is_read_only,
    storage_read_only,
)

from .claim_lock import ClaimRecord
from .cleanup import end_processes
from .device_health import DeviceHealth
from .job_session import JobSession
from .launcher import Launcher
from .server_api import FencedOut, ServerApi, ServerFault, ServerRefused
from .server_commands import Cancelled, Released
from .settings import WorkerSettings

log = logging.getLogger(__name__)

CANCEL_GRACE_SECONDS = 2.0
"""Seconds for a cancelled trainer to exit without saving anything."""
LEFTOVER_SECONDS = 2.0
"""Maximum seconds to wait until a killed trainer's processes have ended."""


def supervise(
    settings: WorkerSettings,
    api: ServerApi,
    worker_id: str,
    stop_requested: Callable[[], bool],
    launcher: Launcher,
    stop_now: Callable[[], bool] = lambda: False,
    health: DeviceHealth | None = None,
) -> bool:
    """Claim and run one job; return False if no job waits or the host is not ready."""
    if health is not None and not health.is_ready():
        return False
    started = time.perf_counter()
    claim = api.claim(worker_id)
    if claim is None:
        return False
    if health is not None:
        health.job_claimed()
    log.info("claimed %s, attempt %d, fence %d", claim.job_id, claim.attempt, claim.fence)
    record = ClaimRecord(settings, worker_id, claim, api.identity.secret)
    job = JobSession(settings, api, worker_id, claim, stop_requested, launcher, stop_now)
    run_dir, reported = settings.run_dir(claim.job_id, claim.attempt), False
    try:
        try:
            job.prepare(claim_seconds=time.perf_counter() - started)
            job.spawn()
            outcome = job.watch()
        except Cancelled:
            job.stop_trainer(CANCEL_GRACE_SECONDS, cancel=True)
            outcome = Outcome(state="cancelled")
        except Released:
            outcome = job.release(settings.release_seconds)
        record.record_outcome(outcome)
        reported = job.finish(outcome)
    except FencedOut as error:
        log.warning("lost the lease of %s: %s", claim.job_id, error)
        reported = True
    except Exception as error:  # tell the user about any failure
        log.exception("supervising %s failed", claim.job_id)
        outcome = Outcome(state="failed", error=_failure_of(error, settings))
        record.record_outcome(outcome)
        reported = _fail_attempt(job, error, outcome)
    finally:
        job.close()
        end_processes(run_dir, job.trainer_pid, LEFTOVER_SECONDS)
        if health is not None:
            health.watch_run(run_dir, job.trainer_pid)
        record.close(reported=reported)
        if stop_requested():
            launcher.close()
        else:
            launcher.keep_warm_trainer()
    return True


def _fail_attempt(job: JobSession, error: Exception, outcome: Outcome) -> bool:
    try:
        job.stop_trainer(0.0, cancel=False)
        if isinstance(error, ServerRefused):
            job.forget_events()  # the server would refuse these events again
        return job.finish(outcome)
    except (ServerRefused, OSError):  # the events remain on disk
        log.exception("cannot report the failure of the job")
        return False  # OrphanReporter reports the outcome later, without the events


def _failure_of(error: Exception, settings: WorkerSettings) -> JobFailure:
    if isinstance(error, RunError):
        return error.failure
    if is_disk_full(error):
        return disk_full(error_text(error))
    if is_read_only(error, settings.data_dir):
        return storage_read_only(error_text(error))
    refused = isinstance(error, ServerFault) and error.code == ErrorCode.STORAGE_READ_ONLY
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.STORAGE_READ_ONLY if refused else ErrorCode.INTERNAL,
        message=f"the worker failed to run the job: {type(error).__name__}: {error_text(error)}"[
            :4000
        ],
        hint="see the server's log for the storage error" if refused else "see the worker's log",
    )
