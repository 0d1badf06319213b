"""The body of the train task: claim a job, run its trainer, carry its events, obey the server.

MAIN PATH of the worker: `supervise`, top to bottom. Never imports torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure, Outcome

from .errors import disk_full, is_disk_full
from .held_job import HeldJob
from .launcher import Launcher
from .orders import Cancelled, Released
from .server_api import FencedOut, ServerApi, ServerRefused
from .settings import WorkerSettings

log = logging.getLogger(__name__)

CANCEL_GRACE_SECONDS = 2.0
"""A cancelled trainer saves nothing, so it needs no longer."""
RELEASE_GRACE_SECONDS = 8.0
"""A trainer asked to go may finish its step and write a checkpoint."""


def supervise(
    settings: WorkerSettings,
    api: ServerApi,
    worker_id: str,
    stopping: Callable[[], bool],
    launcher: Launcher,
) -> bool:
    """Claim one job and see it through; False when there was none."""
    asked = time.perf_counter()
    claim = api.claim(worker_id)
    if claim is None:
        return False
    log.info("claimed %s, attempt %d, fence %d", claim.job_id, claim.attempt, claim.fence)
    job = HeldJob(settings, api, worker_id, claim, stopping, launcher)
    try:
        try:
            job.prepare(claim_seconds=time.perf_counter() - asked)
            job.spawn()
            outcome = job.watch()
        except Cancelled:
            job.stop_trainer(CANCEL_GRACE_SECONDS, cancel=True)
            outcome = Outcome(state="cancelled")
        except Released:
            outcome = job.leave(RELEASE_GRACE_SECONDS)
        job.finish(outcome)
    except FencedOut as error:
        log.warning("lost the lease: %s", error)
    except Exception as error:  # whatever it is, the user must learn that the job is not running
        log.exception("supervising %s failed", claim.job_id)
        _fail(job, error)
    finally:
        job.close()
        if not stopping():
            launcher.keep_spare()
    return True


def _fail(job: HeldJob, error: Exception) -> None:
    outcome = Outcome(state="failed", error=_failure_of(error))
    try:
        job.stop_trainer(0.0, cancel=False)
        if isinstance(error, ServerRefused):
            job.forget_events()  # what the server refused once it would refuse again
        job.finish(outcome)
    except (ServerRefused, OSError):  # nothing more can be said: the lease will lapse
        log.exception("the failure could not be reported either")


def _failure_of(error: Exception) -> JobFailure:
    if is_disk_full(error):
        return disk_full(str(error))
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.INTERNAL,
        message=f"the worker could not run the job: {type(error).__name__}: {error}"[:4000],
        hint="see the worker's log",
    )
