"""User commands for a job (pause, resume, cancel, stop), and the command sent to the job's worker.

Each command first locks the job's row, so commands and worker reports take effect one after the
other. Repeating a command is safe. docs/contributing/decisions/0015 lists the effect of each
command.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, Control, ErrorCode, Job, JobState
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.models import JobRow, ResumePointRow

from . import events, jobs, stored_job
from .jobs import HELD

_RETRY = "POST /v1/fine_tuning/jobs/{id}/retry retries it"
_DONE = (
    "GET /v1/fine_tuning/jobs/{id} returns the result; POST /v1/fine_tuning/jobs creates a new job"
)


def cancel(session: Session, job_id: str) -> Job:
    """Cancel a job immediately if no worker holds it; otherwise ask the worker to stop within 5
    s."""
    job = jobs.lock(session, job_id)
    if job.state in HELD:
        if not job.cancel_requested:
            job.cancel_requested = True
            events.add(session, job, "cancel requested")
    elif job.state not in TERMINAL:
        job = _move(session, job, JobState.CANCELLED, "cancelled")
    elif job.state != JobState.CANCELLED:
        raise BadRequest(
            ErrorCode.NOT_CANCELLABLE,
            f"job {job_id!r} has already {job.state}",
            hint="only an unfinished job can be cancelled",
        )
    return jobs.to_wire(job)


def pause(session: Session, job_id: str) -> Job:
    """Pause a queued job, or ask a running job's worker to save a resume point and free its GPU."""
    job = jobs.lock(session, job_id)
    _refuse_ended(job, ErrorCode.NOT_PAUSABLE, "paused")
    if job.state == JobState.VALIDATING_FILES:
        raise BadRequest(
            ErrorCode.NOT_PAUSABLE,
            f"job {job_id!r} cannot be paused while its files are validated",
            hint="wait some seconds until the job is queued, or cancel the job",
        )
    if job.state not in (JobState.PAUSING, JobState.PAUSED) and job.stop_requested:
        raise BadRequest(
            ErrorCode.NOT_PAUSABLE,
            f"job {job_id!r} was asked to stop and will end with the result so far",
            hint=f"POST /v1/fine_tuning/jobs/{job_id}/cancel ends the job without a result",
        )
    if job.state == JobState.QUEUED:
        job = _move(session, job, JobState.PAUSED, "paused before a worker claimed it")
    elif job.state == JobState.RUNNING:
        job = _move(session, job, JobState.PAUSING, "pause requested")
    return jobs.to_wire(job)


def resume(session: Session, wake_ups: WakeUps, job_id: str) -> Job:
    """Queue a paused job, or cancel a pause that has not taken effect. A running job stays
    unchanged."""
    job = jobs.lock(session, job_id)
    _refuse_ended(job, ErrorCode.NOT_RESUMABLE, "resumed")
    if job.state == JobState.PAUSED:
        _requeue(session, wake_ups, job, "resumed: queued again")
    elif job.state == JobState.PAUSING:
        _withdraw_pause(session, job)
    return jobs.to_wire(job)


def stop(session: Session, wake_ups: WakeUps, job_id: str) -> Job:
    """End the training at its next step and keep the result. If no worker holds the job, a worker
    claims the job once more to save the newest resume point as the result."""
    job = jobs.lock(session, job_id)
    _refuse_ended(job, ErrorCode.NOT_STOPPABLE, "stopped")
    if job.stop_requested:
        return jobs.to_wire(job)
    if job.state not in HELD and not has_resume_point(session, job):
        raise BadRequest(
            ErrorCode.NOT_STOPPABLE,
            f"job {job_id!r} is {job.state} and has no resume point to keep",
            hint=f"POST /v1/fine_tuning/jobs/{job_id}/cancel ends it",
        )
    job.stop_requested = True
    events.add(session, job, "stop requested")
    if job.state == JobState.PAUSING:
        _withdraw_pause(session, job)
    elif job.state == JobState.PAUSED:
        _requeue(session, wake_ups, job, "queued again, to save its result")
    return jobs.to_wire(job)


def command_for(job: JobRow) -> Control:
    """Return the command for the job's worker, sent in the reply to a report."""
    if job.cancel_requested:
        return Control.CANCEL
    if job.state == JobState.PAUSING:
        return Control.PAUSE
    if job.stop_requested:
        return Control.STOP
    return Control.PAUSE if job.yield_reason else Control.CONTINUE


def ask_to_yield(
    session: Session, job_id: str, reason: str, *, preempted_at: float | None = None
) -> bool:
    """Ask a running job's worker to save a resume point and free its device; the job is then queued
    again. Returns False if the job is ending or no longer running."""
    job = jobs.lock(session, job_id)
    is_ending = job.cancel_requested or job.stop_requested or job.yield_reason
    if job.state != JobState.RUNNING or is_ending:
        return False
    job.yield_reason = reason[:300]
    if preempted_at is not None:
        job.preempted_at = preempted_at
    events.add(session, job, f"{reason}: the job saves a resume point and frees its device")
    return True


def release(
    session: Session,
    wake_ups: WakeUps,
    job: JobRow,
    reason: str,
    *,
    level: str = "info",
    values: dict[str, Any] | None = None,
) -> JobRow | None:
    """Move a released job to the state requested by its user, or else back to the queue. `reason`
    starts the event's message. Returns None if the job's fencing token has changed."""
    end = requested_end(session, job)
    if end is None:
        return jobs.enqueue(
            session, wake_ups, job.id, f"{reason}: queued again", fence=job.fence, level=level,
            values=values, work_is_lost=True,
        )  # fmt: skip
    state, outcome = end
    message = outcome if job.cancel_requested else f"{reason}: {outcome}"
    columns = {"phase": None, "lease_until": None, **(values or {})}
    return jobs.move(
        session, job.id, state, message, fence=job.fence, level=level, values=columns,
        work_is_lost=True,
    )  # fmt: skip


def requested_end(session: Session, job: JobRow) -> tuple[JobState, str] | None:
    """Return the state to which a user's command moves a released job, and the event's message.

    Such a command is a cancel, a pause, or a stop of a job without a resume point. Return None if
    the user has given none of them."""
    if job.cancel_requested:
        return JobState.CANCELLED, "cancelled"
    if job.state == JobState.PAUSING:
        return JobState.PAUSED, "paused"
    if job.stop_requested and not has_resume_point(session, job):
        return JobState.CANCELLED, "cancelled, because there is no resume point to keep"
    return None


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


def _move(session: Session, job: JobRow, to: JobState, message: str) -> JobRow:
    """Change the job's state. The caller has locked the row and checked the state."""
    moved = jobs.move(session, job.id, to, message)
    if moved is None:
        raise BadRequest(
            ErrorCode.UNREADABLE,
            f"job {job.id!r} has the state {job.state!r}, which this release does not know",
            hint=stored_job.HINT,
        )
    return moved


def _withdraw_pause(session: Session, job: JobRow) -> None:
    # If the worker already has the pause command, it releases the job, which is then queued.
    _move(session, job, JobState.RUNNING, "pause withdrawn")


def _requeue(session: Session, wake_ups: WakeUps, job: JobRow, message: str) -> None:
    jobs.enqueue(session, wake_ups, job.id, message, values={"not_before": None})


def has_resume_point(session: Session, job: JobRow) -> bool:
    query = select(exists().where(ResumePointRow.job_id == job.id))
    return bool(session.scalar(query))
