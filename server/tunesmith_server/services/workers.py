"""Live workers, and the work that waits for them."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import EvaluationStatus, WorkerHello, WorkerWelcome
from tunesmith_schema.queue import LIGHT_QUEUE
from tunesmith_server.core.database import epoch_now
from tunesmith_server.models import EvaluationRow, FileRow, JobRow, WorkerRow
from tunesmith_server.scheduling import limits, order, reservations, usage
from tunesmith_server.scheduling.eligibility import abilities

READY_SECONDS = 35.0
"""Time without a report after which a worker counts as lost: three missed reports, one every 10
s."""
MAX_FILES_WAITING = 8
"""Maximum number of files in the reply to the heartbeat of a worker that validates files. The reply
lists files that wait for validation."""


def hello(session: Session, body: WorkerHello) -> WorkerWelcome:
    now = session.execute(select(epoch_now())).scalar_one()
    known = session.get(WorkerRow, body.worker_id)
    first_seen = known.first_seen if known else now
    idle_since = _idle_since(session, known, now)
    row = session.merge(WorkerRow(**body.model_dump(), last_seen=now, first_seen=first_seen))
    session.flush()
    if body.queue == LIGHT_QUEUE:
        return WorkerWelcome(jobs_waiting=False, files_waiting=_files_waiting(session))
    if idle_since is not None:
        usage.add_idle(session, body.host, idle_since, now)
    names = reservations.names_of(row.worker_id, row)
    waiting = session.execute(order.next_job(abilities(row)), names).first() is not None or bool(
        session.scalar(select(exists().where(evaluation_waits())))
    )
    return WorkerWelcome(jobs_waiting=waiting)


def _idle_since(session: Session, worker: WorkerRow | None, now: float) -> float | None:
    """Return the time of the worker's last report if the worker is ready and has neither a job nor
    an evaluation; else None."""
    if worker is None or worker.not_ready or now - worker.last_seen > READY_SECONDS:
        return None
    holds = select(JobRow.id).where(
        JobRow.lease_owner == worker.worker_id, JobRow.state.in_(limits.HELD)
    )
    evaluates = select(EvaluationRow.id).where(
        EvaluationRow.lease_owner == worker.worker_id,
        EvaluationRow.status == EvaluationStatus.RUNNING,
    )
    is_busy = any(session.scalar(found.limit(1)) for found in (holds, evaluates))
    return None if is_busy else worker.last_seen


def _files_waiting(session: Session) -> list[str]:
    unread = (
        select(FileRow.id)
        .where(FileRow.status == "uploaded", FileRow.reading_until.is_(None))
        .order_by(FileRow.created_at)
        .limit(MAX_FILES_WAITING)
    )
    return list(session.scalars(unread))


def evaluation_waits() -> ColumnElement[bool]:
    """Return the SQL condition that an evaluation is queued and its file needs no more
    validation."""
    unread = select(FileRow.id).where(FileRow.status == "uploaded")
    return and_(
        EvaluationRow.status == EvaluationStatus.QUEUED,
        or_(EvaluationRow.file.is_(None), EvaluationRow.file.not_in(unread)),
    )


def goodbye(session: Session, worker_id: str) -> None:
    session.execute(delete(WorkerRow).where(WorkerRow.worker_id == worker_id))


def ready(session: Session) -> dict[str, int]:
    """Return the number of live workers that accept jobs, for each queue."""
    rows = session.execute(
        select(WorkerRow.queue, func.count())
        .where(WorkerRow.last_seen > epoch_now() - READY_SECONDS, WorkerRow.not_ready.is_(None))
        .group_by(WorkerRow.queue)
    )
    return {queue: count for queue, count in rows}


def not_ready(session: Session) -> dict[str, str]:
    """Return the reasons why live workers accept no jobs; the keys are worker ids."""
    rows = session.execute(
        select(WorkerRow.worker_id, WorkerRow.not_ready).where(
            WorkerRow.last_seen > epoch_now() - READY_SECONDS, WorkerRow.not_ready.is_not(None)
        )
    )
    return {worker_id: reason or "" for worker_id, reason in rows}
