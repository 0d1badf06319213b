"""Live workers, and the jobs that they can serve."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import EvaluationStatus, JobState, WorkerHello, WorkerWelcome
from tunesmith_schema.queue import LIGHT_QUEUE
from tunesmith_server.core.database import epoch_now
from tunesmith_server.models import EvaluationRow, FileRow, JobRow, WorkerRow

READY_SECONDS = 35.0
"""Time after which a silent worker counts as gone: three missed reports, one every 10 s."""
MAX_FILES_WAITING = 8
"""Maximum number of files that an answer to a heartbeat names."""


def hello(session: Session, body: WorkerHello) -> WorkerWelcome:
    now = session.execute(select(epoch_now())).scalar_one()
    session.merge(WorkerRow(**body.model_dump(), last_seen=now))
    session.flush()
    if body.queue == LIGHT_QUEUE:
        return WorkerWelcome(jobs_waiting=False, files_waiting=_files_waiting(session))
    job = exists().where(may_start(), can_serve(session, body.worker_id))
    evaluation = exists().where(evaluation_waits())
    return WorkerWelcome(jobs_waiting=bool(session.scalar(select(or_(job, evaluation)))))


def _files_waiting(session: Session) -> list[str]:
    unread = (
        select(FileRow.id)
        .where(FileRow.status == "uploaded", FileRow.reading_until.is_(None))
        .order_by(FileRow.created_at)
        .limit(MAX_FILES_WAITING)
    )
    return list(session.scalars(unread))


def evaluation_waits() -> ColumnElement[bool]:
    """Return an SQL condition: the evaluation is queued, and its file is not being validated."""
    unread = select(FileRow.id).where(FileRow.status == "uploaded")
    return and_(
        EvaluationRow.status == EvaluationStatus.QUEUED,
        or_(EvaluationRow.file.is_(None), EvaluationRow.file.not_in(unread)),
    )


def may_start() -> ColumnElement[bool]:
    """Return an SQL condition: the job is queued and its retry delay is over."""
    in_time = or_(JobRow.not_before.is_(None), JobRow.not_before <= epoch_now())
    return and_(JobRow.state == JobState.QUEUED, in_time)


def can_serve(session: Session, worker_id: str) -> ColumnElement[bool]:
    """Return an SQL condition: the worker can load the job's base model. The model is a folder on
    the worker's host, or any worker can fetch it (a Hugging Face id, or weights that Tunesmith
    trained)."""
    worker = session.get(WorkerRow, worker_id)
    return or_(
        JobRow.base_adapter_id.is_not(None),
        JobRow.model.contains("/"),
        JobRow.model.in_(worker.models if worker else []),
    )


def goodbye(session: Session, worker_id: str) -> None:
    session.execute(delete(WorkerRow).where(WorkerRow.worker_id == worker_id))


def ready(session: Session) -> dict[str, int]:
    """Return the number of live workers that accept jobs, by queue."""
    rows = session.execute(
        select(WorkerRow.queue, func.count())
        .where(WorkerRow.last_seen > epoch_now() - READY_SECONDS, WorkerRow.not_ready.is_(None))
        .group_by(WorkerRow.queue)
    )
    return {queue: count for queue, count in rows}


def not_ready(session: Session) -> dict[str, str]:
    """Return the reason why each live, unready worker accepts no job, by worker id."""
    rows = session.execute(
        select(WorkerRow.worker_id, WorkerRow.not_ready).where(
            WorkerRow.last_seen > epoch_now() - READY_SECONDS, WorkerRow.not_ready.is_not(None)
        )
    )
    return {worker_id: reason or "" for worker_id, reason in rows}
