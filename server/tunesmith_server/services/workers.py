"""Workers that said they are there, and whether there is something for them."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from tunesmith_schema import JobState, WorkerHello, WorkerWelcome

from ..database import epoch_now
from ..models import JobRow, WorkerRow

READY_SECONDS = 35.0
"""A worker says hello every 10 s; three misses and it does not count."""


def hello(session: Session, body: WorkerHello) -> WorkerWelcome:
    now = session.execute(select(epoch_now())).scalar_one()
    session.merge(WorkerRow(**body.model_dump(), last_seen=now))
    waiting = session.scalar(
        select(func.count()).select_from(JobRow).where(JobRow.state == JobState.QUEUED)
    )
    return WorkerWelcome(jobs_waiting=bool(waiting))


def goodbye(session: Session, worker_id: str) -> None:
    session.execute(delete(WorkerRow).where(WorkerRow.worker_id == worker_id))


def ready(session: Session) -> dict[str, int]:
    """Live workers by queue."""
    rows = session.execute(
        select(WorkerRow.queue, func.count())
        .where(WorkerRow.last_seen > epoch_now() - READY_SECONDS)
        .group_by(WorkerRow.queue)
    )
    return {queue: count for queue, count in rows}
