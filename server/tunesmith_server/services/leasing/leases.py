"""Leases: a worker renews the lease of its job with each report, and loses the lease if it stops
reporting. Leases are created in claims.py.

Every write needs the newest fencing token of the job. Each claim increases the fencing token, so a
worker that has lost the lease cannot write. Lease expiry uses only the database clock.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tunesmith_schema import (
    MAX_EVENTS_PER_REPORT,
    ErrorCategory,
    ErrorCode,
    EventKind,
    JobFailure,
    JobState,
    Outcome,
    ReportReply,
    RunEvent,
    RunReport,
    StoredFile,
)
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import Conflict
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import JobRow, ProjectRow
from tunesmith_server.scheduling import lanes, usage

from .. import blobs
from ..catalogue import adapters, base_models
from ..results import job_health, samples
from ..results.faults import is_outage
from ..training import events, job_control, jobs, quarantine, reports, stored_job
from ..training.jobs import HELD
from . import attempts, checkpoint_retention, resume_points
from .received import ReceivedReport, Unreadable, store_events

log = logging.getLogger(__name__)


def check_fence(session: Session, job_id: str, fence: int) -> JobRow:
    """Return the job if `fence` is its current fence, else raise Conflict."""
    job = jobs.retrieve(session, job_id)
    if job.fence != fence or job.state not in HELD:
        raise _fenced_out(job, fence)
    return job


def _fenced_out(job: JobRow, fence: int) -> Conflict:
    return Conflict(
        ErrorCode.FENCED_OUT,
        f"the claim with fencing token {fence} no longer holds job {job.id}: the job is "
        f"{job.state} with fencing token {job.fence}",
        hint="stop the trainer: another worker has the job, or the job has ended",
    )


def _listed_files(report: ReceivedReport) -> list[StoredFile]:
    events = [event for event in report.events if isinstance(event, RunEvent)]
    listed = [file for event in events for file in event.files or []]
    return listed + (report.outcome.files if report.outcome else [])


def report(
    session: Session, settings: Settings, wake_ups: WakeUps, job_id: str, report: ReceivedReport
) -> ReportReply:
    """Renew the lease, store new events, and return a command for the worker."""
    job = session.scalar(
        update(JobRow)
        .where(
            JobRow.id == job_id,
            JobRow.fence == report.fence,
            JobRow.attempt == report.attempt,
            JobRow.lease_owner == report.worker_id,
            JobRow.state.in_(HELD),
        )
        .values(lease_until=epoch_now() + settings.lease_seconds, phase=report.phase)
        .returning(JobRow),
        execution_options={"populate_existing": True, "synchronize_session": False},
    )
    if job is None:
        job = jobs.retrieve(session, job_id)
        holder = (job.fence, job.attempt, job.lease_owner)
        is_holder = holder == (report.fence, report.attempt, report.worker_id)
        if not is_holder or report.outcome is None:
            raise _fenced_out(job, report.fence)
        # The worker repeats its final report, because the reply was lost.
        return _reply(settings, job)
    blobs.use_files(session, _listed_files(report))
    store_events(session, job, report.events, lambda event: _store(session, settings, job, event))
    now = (job.lease_until or 0.0) - settings.lease_seconds
    _measure(job, now, is_full=len(report.events) == MAX_EVENTS_PER_REPORT)
    usage.continue_charging(session, job, now)
    if lanes.leave_if_too_long(job, now):
        events.add(session, job, lanes.LEFT)
    if any(isinstance(e, RunEvent) and e.kind is EventKind.METRICS for e in report.events):
        job_health.update(session, job)
    _store_run_report(session, job, report.run_report)
    if report.outcome is not None:
        _finish(session, settings, wake_ups, job, report.outcome)
    return _reply(settings, job)


def _measure(job: JobRow, now: float, *, is_full: bool) -> None:
    """Record the time and the step from which the attempt's speed is measured: usually, its first
    reported step. If a report has the maximum number of events (`is_full`), its events have waited
    on the worker, for example while the API was away. The time at which they arrive does not show
    the speed, so the measurement starts again.
    """
    if (is_full or job.measured_at is None) and job.step > (job.claimed_step or 0):
        job.measured_at, job.measured_step = now, job.step


def _store_run_report(
    session: Session, job: JobRow, run_report: RunReport | Unreadable | None
) -> None:
    """Replace the run report; keep the previous report if the new report cannot be stored."""
    reason: object = run_report.reason if isinstance(run_report, Unreadable) else None
    if isinstance(run_report, RunReport):
        try:
            with session.begin_nested():
                reports.store(session, job, run_report)
        except Exception as error:
            if is_outage(error):
                raise
            reason = repr(error)
    if reason is not None:
        log.warning("run report of %s not stored: %s", job.id, reason)


def _reply(settings: Settings, job: JobRow) -> ReportReply:
    return ReportReply(
        control=job_control.command_for(job),
        accepted_seq=job.source_seq,
        lease_seconds=settings.lease_seconds,
    )


def _store(session: Session, settings: Settings, job: JobRow, event: RunEvent) -> None:
    data = dict(event.data)
    if event.kind is EventKind.METRICS:
        events.store_metrics(session, job, event)
    if event.kind is EventKind.CHECKPOINT and event.files:
        step = data.get("step")
        if not isinstance(step, int):
            raise ValueError(f"data.step: a checkpoint needs its step, got {step!r}"[:200])
        metrics = data.get("metrics")
        adapter = adapters.record_checkpoint(
            session,
            job,
            model=base_models.checkpoint_name(_tuned_name(session, settings, job), step),
            kind=stored_job.recipe(job).tuning,
            step=step,
            metrics=metrics if isinstance(metrics, dict) else {},  # type: ignore[arg-type]  # JSON; the wire model checks
            files=event.files,
        )
        checkpoint_retention.drop_beyond_limit(session, job)
        data = {"step": step, "adapter_id": adapter.id, "metrics": metrics}
    if event.kind is EventKind.RESUME_POINT:
        resume_points.record(session, job, event)
    if event.kind is EventKind.SAMPLES:
        samples.record(session, job, event)
        data.pop("file", None)  # a path on the worker's host
    if event.kind is EventKind.RESUMED:
        resume_points.record_resume(session, job, event)
    events.add(
        session,
        job,
        event.message,
        kind=event.kind,
        level=event.level,
        data=data,
        created_at=event.created_at,
    )


def _tuned_name(session: Session, settings: Settings, job: JobRow) -> str:
    project = session.get(ProjectRow, job.project_id)
    slug = (project and project.slug) or settings.project
    return base_models.tuned_name(slug, job.model, job.suffix, job.id)


def _finish(
    session: Session, settings: Settings, wake_ups: WakeUps, job: JobRow, outcome: Outcome
) -> None:
    fence = job.fence
    if outcome.state == "released":
        reason = job.yield_reason or "released by its worker"
        job_control.release(session, wake_ups, job, reason)
    elif outcome.state == "cancelled":
        jobs.move(session, job.id, JobState.CANCELLED, "cancelled while training", fence=fence)
    elif outcome.state == "failed":
        failure = outcome.error or JobFailure(
            category=ErrorCategory.INFRASTRUCTURE,
            code=ErrorCode.TRAINER_CRASHED,
            message="the worker reported no reason",
        )
        attempts.fail_attempt(session, settings, job, failure)
    else:
        name = _tuned_name(session, settings, job)
        adapter = adapters.record(
            session,
            job,
            model=name,
            kind=outcome.kind or stored_job.recipe(job).tuning,
            step=outcome.step,
            files=outcome.files,
        )
        jobs.move(
            session,
            job.id,
            JobState.SUCCEEDED,
            f"succeeded: {name}",
            fence=fence,
            data={"adapter_id": adapter.id, "fine_tuned_model": name},
            values={
                "fine_tuned_model": name,
                "adapter_id": adapter.id,
                "step": outcome.step,
                "trained_tokens": outcome.trained_tokens,
                "cancel_requested": False,
            },
        )


def take_back_expired(session: Session, settings: Settings) -> int:
    """Take jobs back from silent workers; return the number of jobs. Several processes may call
    this function."""
    expired = session.scalars(
        select(JobRow)
        .where(JobRow.state.in_(HELD), JobRow.lease_until < epoch_now())
        .order_by(JobRow.project_id)  # all janitors lock the projects in this order
        .with_for_update(skip_locked=True)
    )
    taken = 0
    for job in list(expired):
        take = partial(_take_back, session, settings, job)
        taken += quarantine.guarded(session, job.id, "taken back", take) is not None
    return taken


def _take_back(session: Session, settings: Settings, job: JobRow) -> JobRow | None:
    failure = JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.WORKER_LOST,
        message=f"worker {job.lease_owner} stopped reporting in attempt {job.attempt}",
        hint="check the worker's log; its host may have run out of memory",
    )
    # The new fence makes a late final report fail instead of counting as a repeat.
    fenced: dict[str, Any] = {"fence": job.fence + 1}
    return attempts.fail_attempt(session, settings, job, failure, fenced)
