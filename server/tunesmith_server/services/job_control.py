"""What users ask of a job that exists: pause, resume, cancel, stop. And what its worker is told.

Each locks the job's row first, so that two wishes, or a wish and a worker's report, come one after
the other. Saying one twice is saying it once. docs/contributing/decisions/0015 has the table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, Control, ErrorCode, Job, JobState
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.models import JobRow, ResumePointRow

from . import events, jobs
from .jobs import HELD

_RETRY = "POST /v1/fine_tuning/jobs/{id}/retry takes it up again"
_DONE = "GET /v1/fine_tuning/jobs/{id} names what it made; POST /v1/fine_tuning/jobs trains anew"


def cancel(session: Session, job_id: str) -> Job:
    """Cancel at once where no worker holds the job; else ask its worker, which obeys within 5 s."""
    job = jobs.lock(session, job_id)
    if job.state in HELD:
        if not job.cancel_requested:
            job.cancel_requested = True
            events.add(session, job, "cancel requested")
    elif job.state not in TERMINAL:
        job = _moved(session, job, JobState.CANCELLED, "cancelled")
    elif job.state != JobState.CANCELLED:
        raise BadRequest(
            ErrorCode.NOT_CANCELLABLE,
            f"job {job_id!r} has already {job.state}",
            hint="only a job that has not ended can be cancelled",
        )
    return jobs.to_wire(job)


def pause(session: Session, job_id: str) -> Job:
    """Hold a waiting job; have a running one save a resume point and give its device back."""
    job = jobs.lock(session, job_id)
    _refuse_ended(job, ErrorCode.NOT_PAUSABLE, "paused")
    if job.state == JobState.VALIDATING_FILES:
        raise BadRequest(
            ErrorCode.NOT_PAUSABLE,
            f"job {job_id!r} cannot be paused while its files are read",
            hint="that takes seconds: pause it once it is queued, or cancel it",
        )
    if job.state not in (JobState.PAUSING, JobState.PAUSED) and job.stop_requested:
        raise BadRequest(
            ErrorCode.NOT_PAUSABLE,
            f"job {job_id!r} was asked to stop and is about to end with what it has made",
            hint=f"POST /v1/fine_tuning/jobs/{job_id}/cancel ends it without a result",
        )
    if job.state == JobState.QUEUED:
        job = _moved(session, job, JobState.PAUSED, "paused before a worker had it")
    elif job.state == JobState.RUNNING:
        job = _moved(session, job, JobState.PAUSING, "pause requested")
    return jobs.to_wire(job)


def resume(session: Session, wake_ups: WakeUps, job_id: str) -> Job:
    """Queue a paused job; call off a pause that is under way. Whatever goes on anyway goes on."""
    job = jobs.lock(session, job_id)
    _refuse_ended(job, ErrorCode.NOT_RESUMABLE, "resumed")
    if job.state == JobState.PAUSED:
        _requeue(session, wake_ups, job, "resumed: queued again")
    elif job.state == JobState.PAUSING:
        _call_off_pause(session, job)
    return jobs.to_wire(job)


def stop(session: Session, wake_ups: WakeUps, job_id: str) -> Job:
    """End the training at its next step and keep what it has made. A job that no worker holds is
    taken up once more for that, from its newest resume point."""
    job = jobs.lock(session, job_id)
    _refuse_ended(job, ErrorCode.NOT_STOPPABLE, "stopped")
    if job.stop_requested:
        return jobs.to_wire(job)
    if job.state not in HELD and not has_resume_point(session, job):
        raise BadRequest(
            ErrorCode.NOT_STOPPABLE,
            f"job {job_id!r} is {job.state} and has made nothing that could be kept",
            hint=f"POST /v1/fine_tuning/jobs/{job_id}/cancel ends it",
        )
    job.stop_requested = True
    events.add(session, job, "stop requested")
    if job.state == JobState.PAUSING:
        _call_off_pause(session, job)
    elif job.state == JobState.PAUSED:
        _requeue(session, wake_ups, job, "queued again, to save what it has made")
    return jobs.to_wire(job)


def order(job: JobRow) -> Control:
    """What whoever holds the job is told with the reply to a report."""
    if job.cancel_requested:
        return Control.CANCEL
    if job.state == JobState.PAUSING:
        return Control.PAUSE
    return Control.STOP if job.stop_requested else Control.CONTINUE


def let_go(
    session: Session,
    wake_ups: WakeUps,
    job: JobRow,
    reason: str,
    *,
    level: str = "info",
    values: dict[str, Any] | None = None,
) -> JobRow | None:
    """What becomes of a job whose worker has let it go, or was lost: what its user asked for, else
    it is queued again. `reason` begins the event's message. None: the fence was no longer right."""
    idle = {"phase": None, "lease_until": None, **(values or {})}
    to, message = JobState.CANCELLED, "cancelled"
    if job.cancel_requested:
        pass
    elif job.state == JobState.PAUSING:
        to, message = JobState.PAUSED, f"{reason}: paused"
    elif job.stop_requested and not has_resume_point(session, job):
        message = f"{reason} before anything was stored that the stop could have kept: cancelled"
    else:
        return jobs.enqueue(
            session, wake_ups, job.id, f"{reason}: queued again", fence=job.fence, level=level,
            values=values,
        )  # fmt: skip
    return jobs.move(session, job.id, to, message, fence=job.fence, level=level, values=idle)


def _refuse_ended(job: JobRow, code: ErrorCode, verb: str) -> None:
    if job.state in TERMINAL:
        again = _DONE if job.state == JobState.SUCCEEDED else _RETRY
        raise BadRequest(
            code,
            f"job {job.id!r} has already {job.state} and cannot be {verb}"
            if job.state != JobState.CANCELLED
            else f"job {job.id!r} was cancelled and cannot be {verb}",
            hint=again.format(id=job.id),
        )
    if job.cancel_requested:
        raise BadRequest(
            code,
            f"job {job.id!r} is being cancelled and cannot be {verb}",
            hint=f"once it is cancelled, {_RETRY.format(id=job.id)}",
        )


def _moved(session: Session, job: JobRow, to: JobState, message: str) -> JobRow:
    moved = jobs.move(session, job.id, to, message)
    assert moved is not None, "the row is locked, and the caller looked at its state"
    return moved


def _call_off_pause(session: Session, job: JobRow) -> None:
    # Should its worker have been told already, it lets go all the same, and the job is queued.
    _moved(session, job, JobState.RUNNING, "the pause was called off")


def _requeue(session: Session, wake_ups: WakeUps, job: JobRow, message: str) -> None:
    jobs.enqueue(session, wake_ups, job.id, message, values={"not_before": None})


def has_resume_point(session: Session, job: JobRow) -> bool:
    found = select(exists().where(ResumePointRow.job_id == job.id))
    return bool(session.scalar(found))
