"""Reasons why jobs wait. If no live training worker has the base model of a queued job, the job
gets a warning. When a worker has the base model, the warning is withdrawn.

An active warning is an event of level `warn` with `data.reason`. A later event withdraws the
warning. The `data.withdraws` of the later event is the id of the warning. A withdrawn warning has
the level `info`, and its `data.withdrawn_by` is the id of the later event.
"""

from __future__ import annotations

import time
from functools import partial

from pydantic import JsonValue
from sqlalchemy import ColumnElement, bindparam, exists, select
from sqlalchemy.orm import Session

from tunesmith_schema import JobState, WaitingBecause, WaitingCode
from tunesmith_schema.queue import LIGHT_QUEUE
from tunesmith_server.core.database import readable_object
from tunesmith_server.models import EventRow, JobRow
from tunesmith_server.scheduling.eligibility import may_start
from tunesmith_server.scheduling.view import View

from .. import workers
from ..catalogue import base_models
from . import events, quarantine

PATIENCE_SECONDS = 60.0
"""Minimum seconds in the queue before a job gets the warning, so that a restarted worker can first
report its base models."""
REASON = "base_model_not_on_workers"
"""Value of `data.reason` in the warning."""


def warn(session: Session, job: JobRow) -> None:
    """Add the warning to a job that this transaction has locked."""
    session.add(new_warning(job))


def new_warning(job: JobRow) -> EventRow:
    """Return a new event of `job` that contains the warning."""
    message = (
        f"no training worker has the base model {job.model!r}: the job waits. Start a worker whose "
        "TUNESMITH_MODEL_DIRS contains the folder of this model"
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
    event = events.add(session, job, message, data=data)
    for warning in session.scalars(_WARNINGS, {"job_id": job.id}).all():
        _withdraw(warning, event)


def withdraw_at_claim(session: Session, job: JobRow) -> None:
    """Withdraw an active warning of `job`. The job's newest event, which must be the event of the
    claim, withdraws the warning."""
    for warning in session.scalars(_WARNINGS, {"job_id": job.id}).all():
        _withdraw(warning, session.get_one(EventRow, (job.id, job.last_seq)))


def _in_force() -> tuple[ColumnElement[bool], ...]:
    return EventRow.level == "warn", readable_object(EventRow.data)["reason"].as_string() == REASON


def _queued(session: Session, *conditions: ColumnElement[bool]) -> list[JobRow]:
    query = select(JobRow).where(may_start(), *conditions)
    return list(session.scalars(query.with_for_update(skip_locked=True)))


_WARNINGS = select(EventRow).where(EventRow.job_id == bindparam("job_id"), *_in_force())
"""Query of a job's active warnings. To make claims fast, the query is built only once."""


def _withdraw(warning: EventRow, event: EventRow) -> None:
    warning.level = "info"
    warning.data = {**warning.data, "withdrawn_by": events.event_id(event.job_id, event.seq)}
    event.data = {**event.data, "withdraws": events.event_id(warning.job_id, warning.seq)}


def describe(session: Session, view: View, job: JobRow) -> dict[str, object]:
    """Return the fields that tell why the job waits and when it may start. Return no fields for a
    job that is running or has ended."""
    if job.state == JobState.VALIDATING_FILES:
        light = workers.ready(session).get(LIGHT_QUEUE)
        message = (
            "its files are being validated"
            if light
            else "no worker that validates files is running"
        )
        because = WaitingBecause(code=WaitingCode.VALIDATING_FILES, message=message)
        return {"waiting_because": because}
    if job.state == JobState.PAUSED:
        message = "it is paused until it is resumed"
        return {"waiting_because": WaitingBecause(code=WaitingCode.PAUSED, message=message)}
    queued = view.job(job.id) if job.state == JobState.QUEUED else None
    if queued is None:
        return {}
    return {
        "queue_position": view.position(queued),
        "waiting_because": view.because(queued),
        "estimated_start": view.estimated_start(queued),
    }
