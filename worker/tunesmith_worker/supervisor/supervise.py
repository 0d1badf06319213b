"""The body of the train task: claim a job, run its trainer, carry its events, obey the server.

MAIN PATH of the worker: `supervise`, top to bottom. Never imports torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure, Outcome
from tunesmith_worker.rundir.errors import (
    RunError,
    disk_full,
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
"""A cancelled trainer saves nothing, so it needs no longer."""
LEFTOVER_SECONDS = 2.0
"""For what a trainer had started to end, once it is killed. The guard waits for longer."""


def supervise(
    settings: WorkerSettings,
    api: ServerApi,
    worker_id: str,
    stopping: Callable[[], bool],
    launcher: Launcher,
    at_once: Callable[[], bool] = lambda: False,
    guard: DeviceHealth | None = None,
) -> bool:
    """Claim one job and see it through; False when there was none, or the device is not fit."""
    if guard is not None and not guard.is_clean():
        return False
    asked = time.perf_counter()
    claim = api.claim(worker_id)
    if claim is None:
        return False
    if guard is not None:
        guard.taken()
    log.info("claimed %s, attempt %d, fence %d", claim.job_id, claim.attempt, claim.fence)
    record = ClaimRecord(settings, worker_id, claim)
    job = JobSession(settings, api, worker_id, claim, stopping, launcher, at_once)
    run_dir, told = settings.run_dir(claim.job_id, claim.attempt), False
    try:
        try:
            job.prepare(claim_seconds=time.perf_counter() - asked)
            job.spawn()
            outcome = job.watch()
        except Cancelled:
            job.stop_trainer(CANCEL_GRACE_SECONDS, cancel=True)
            outcome = Outcome(state="cancelled")
        except Released:
            outcome = job.leave(settings.release_seconds)
        record.ends(outcome)
        told = job.finish(outcome)
    except FencedOut as error:
        log.warning("lost the lease: %s", error)
        told = True
    except Exception as error:  # whatever it is, the user must learn that the job is not running
        log.exception("supervising %s failed", claim.job_id)
        outcome = Outcome(state="failed", error=_failure_of(error, settings))
        record.ends(outcome)
        told = _fail(job, error, outcome)
    finally:
        job.close()
        end_processes(run_dir, job.trainer_pid, LEFTOVER_SECONDS)
        if guard is not None:
            guard.watches(run_dir, job.trainer_pid)
        record.close(told=told)
        if stopping():
            launcher.close()
        else:
            launcher.keep_warm_trainer()
    return True


def _fail(job: JobSession, error: Exception, outcome: Outcome) -> bool:
    """Whether the server was told."""
    try:
        job.stop_trainer(0.0, cancel=False)
        if isinstance(error, ServerRefused):
            job.forget_events()  # what the server refused once it would refuse again
        return job.finish(outcome)
    except (ServerRefused, OSError):  # events stay, and the reason for the log
        log.exception("the failure could not be reported either")
        return False  # the watchman may say it without the rest


def _failure_of(error: Exception, settings: WorkerSettings) -> JobFailure:
    if isinstance(error, RunError):
        return error.failure
    if is_disk_full(error):
        return disk_full(str(error))
    if is_read_only(error, settings.data_dir):
        return storage_read_only(str(error))
    refused = isinstance(error, ServerFault) and error.code == ErrorCode.STORAGE_READ_ONLY
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.STORAGE_READ_ONLY if refused else ErrorCode.INTERNAL,
        message=f"the worker could not run the job: {type(error).__name__}: {error}"[:4000],
        hint="the server's log says why its storage refuses" if refused else "see the worker's log",
    )
