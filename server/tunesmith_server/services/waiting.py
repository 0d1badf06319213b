"""Reasons for which jobs wait; warnings for queued jobs whose base model is on no live train
worker, and the withdrawal of these warnings.

An active warning is an event of level `warn` with `data.reason`. A later event withdraws the
warning: its `data.withdraws` has the warning's event id. The withdrawn warning has the level `info`
and, in `data.withdrawn_by`, the id of that event.
"""

from __future__ import annotations

import time
from functools import partial

from pydantic import JsonValue
from sqlalchemy import ColumnElement, exists, func, select, tuple_
from sqlalchemy.orm import Session

from tunesmith_schema import JobState, JobWaiting
from tunesmith_schema.queue import LIGHT_QUEUE, TRAIN_QUEUE
from tunesmith_server.core.database import epoch_now, readable_object
from tunesmith_server.models import EventRow, JobRow
from tunesmith_server.models.scope import all_projects

from . import base_models, events, quarantine, workers

PATIENCE_SECONDS = 60.0
"""Time in which a restarted worker should report its base models again."""
REASON = "base_model_not_on_workers"
"""`data.reason` of the warning."""


def warn(session: Session, job: JobRow) -> None:
    """Add the warning to a job that this transaction has locked before."""
    session.add(new_warning(job))


def new_warning(job: JobRow) -> EventRow:
    """Return the warning as the next event of `job`."""
    message = (
        f"no train worker has the base model {job.model!r}: the job waits. Start a worker whose "
        "TUNESMITH_MODEL_DIRS contains that folder"
    )
    data: dict[str, JsonValue] = {"reason": REASON, "base_model": job.model}
    return events.new(job, message, level="warn", data=data)


def update_warnings(session: Session) -> None:
    """Add a warning to each job whose base model is on no worker, and withdraw warnings of jobs
    whose base model is now on a worker."""
    holders = base_models.on_workers(session)
    is_warned = exists().where(EventRow.job_id == JobRow.id, *_in_force())
    is_stuck = (
        JobRow.queued_at < time.time() - PATIENCE_SECONDS,
        JobRow.base_adapter_id.is_(None),
        ~JobRow.model.contains("/"),
        JobRow.model.not_in(holders),
    )
    for job in _queued(session, *is_stuck, ~is_warned):
        quarantine.guarded(session, job.id, "warned", partial(warn, session, job))
    for job in _queued(session, JobRow.model.in_(holders), is_warned):
        served = partial(_base_is_served, session, job, holders[job.model])
        quarantine.guarded(session, job.id, "warned", served)


def _base_is_served(session: Session, job: JobRow, workers: list[str]) -> None:
    names = ", ".join(workers)
    message = f"the base model {job.model!r} is now on {names}: the job waits for a free worker"
    data: dict[str, JsonValue] = {"base_model": job.model, "workers": [*workers]}
    _withdraw(session, job, events.add(session, job, message, data=data))


def withdraw_at_claim(session: Session, job: JobRow) -> None:
    """Withdraw an active warning of `job`. The newest event, which is the claim, gets the warning's
    id."""
    _withdraw(session, job, session.get_one(EventRow, (job.id, job.last_seq)))


def _in_force() -> tuple[ColumnElement[bool], ...]:
    return EventRow.level == "warn", readable_object(EventRow.data)["reason"].as_string() == REASON


def _queued(session: Session, *conditions: ColumnElement[bool]) -> list[JobRow]:
    query = select(JobRow).where(workers.may_start(), *conditions)
    return list(session.scalars(query.with_for_update(skip_locked=True)))


def _withdraw(session: Session, job: JobRow, event: EventRow) -> None:
    for warning in session.scalars(select(EventRow).where(EventRow.job_id == job.id, *_in_force())):
        warning.level = "info"
        warning.data = {**warning.data, "withdrawn_by": events.event_id(job.id, event.seq)}
        event.data = {**event.data, "withdraws": events.event_id(job.id, warning.seq)}


MAX_POSITION = 1000
"""Positions in the queue are counted up to this number."""


def describe(session: Session, job: JobRow) -> JobWaiting | None:
    """Return what a job waits for; None for a job that runs or has ended."""
    if job.state == JobState.VALIDATING_FILES:
        light = workers.ready(session).get(LIGHT_QUEUE)
        reason = "its files are being validated" if light else "no light worker validates files"
        return JobWaiting(reason=reason)
    if job.state == JobState.PAUSED:
        return JobWaiting(reason="it is paused until it is resumed")
    if job.state != JobState.QUEUED:
        return None
    delay = session.scalar(select(JobRow.not_before - epoch_now()).where(JobRow.id == job.id))
    if delay and delay > 0:
        return JobWaiting(reason=f"the next attempt starts in {delay:.0f} s at the earliest")
    position = _position(session, job)
    return JobWaiting(position=position, reason=_reason(session, job, position))


def _position(session: Session, job: JobRow) -> int:
    earlier = (
        select(JobRow.id)
        .where(workers.may_start())
        .where(tuple_(JobRow.created_at, JobRow.id) < (job.created_at, job.id))
        .limit(MAX_POSITION)
    )
    ahead = all_projects(select(func.count()).select_from(earlier.subquery()))
    return 1 + (session.scalar(ahead) or 0)


def _reason(session: Session, job: JobRow, position: int) -> str:
    ready = workers.ready(session).get(TRAIN_QUEUE, 0)
    if not ready:
        unfit = workers.not_ready(session)
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(unfit.items()))
        return reasons[:1000] or "no train worker is running"
    is_local = job.base_adapter_id is None and "/" not in job.model
    if is_local and job.model not in base_models.on_workers(session):
        return f"no train worker has the base model {job.model!r}"
    if position > 1:
        return "1 job is ahead" if position == 2 else f"{position - 1} jobs are ahead"
    held = JobRow.state.in_((JobState.RUNNING, JobState.PAUSING))
    all_held = all_projects(select(func.count()).select_from(JobRow).where(held))
    running = session.scalar(all_held) or 0
    if running >= ready:
        return f"all train workers are busy ({running} jobs are running)"
    return "a free train worker will claim it"
