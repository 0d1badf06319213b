"""Queued jobs that nobody who is up can serve: their events say so, once."""

from __future__ import annotations

import time

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from tunesmith_server.models import EventRow, JobRow

from . import base_models, events, workers

PATIENCE_SECONDS = 60.0
"""A worker that is being restarted, with its base models, is back by then."""


def tell(session: Session) -> None:
    """Add a warning to each job that waits for a base model which no live train worker has."""
    stuck = session.scalars(
        select(JobRow)
        .where(
            workers.may_start(),
            JobRow.queued_at < time.time() - PATIENCE_SECONDS,
            JobRow.base_adapter_id.is_(None),
            ~JobRow.model.contains("/"),
            JobRow.model.not_in(base_models.on_workers(session)),
        )
        .with_for_update(skip_locked=True)
    )
    for job in list(stuck):
        warning = base_models.no_worker_has(job.model)
        told = exists().where(EventRow.job_id == job.id, EventRow.message == warning)
        if not session.scalar(select(told)):
            events.add(session, job, warning, level="warn")
