"""State of jobs; no other module writes the state.

`insert` sets the first state of a job. Only `move` and `start` change a job's state. Each function
uses a conditional UPDATE that allows only legal transitions, and adds an event in the same
transaction. `start` is for claims.py; the callers of `move` are leases.py (workers' reports) and
job_control.py (user commands).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, cast

from pydantic import JsonValue
from sqlalchemy import ColumnElement, bindparam, func, select, update
from sqlalchemy.orm import Session

from tunesmith_schema import (
    TERMINAL,
    TRANSITIONS,
    ErrorCategory,
    ErrorCode,
    EventKind,
    JobFailure,
    JobState,
    MethodName,
)
from tunesmith_schema.queue import TRAIN_TASK
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.models import EventRow, FileRow, JobRow
from tunesmith_server.scheduling import limits, usage

from ..data import files
from ..pages import PageBuilder, read_page
from ..paging import Order, unknown_cursor
from ..results import job_health
from . import events, job_summaries, stored_job
from .job_filters import JobFilters

HELD = limits.HELD

to_wire = stored_job.to_wire


def move(
    session: Session,
    job_id: str | ColumnElement[str],
    to: JobState,
    message: str,
    *,
    only_from: set[JobState] | None = None,
    fence: int | None = None,
    level: str = "info",
    data: dict[str, JsonValue] | None = None,
    values: dict[str, Any] | None = None,
    work_is_lost: bool = False,
) -> JobRow | None:
    """Change a job's state if the transition is legal. Returns None if nothing was changed.

    `fence` makes the change conditional on the fencing token; `values` sets other columns. With
    `work_is_lost`, the project is not charged for the time after the newest resume point.
    """
    sources = [old for old, new in TRANSITIONS.items() if to in new]
    if only_from is not None:
        sources = [old for old in sources if old in only_from]
    statement = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(sources))
    if fence is not None:
        statement = statement.where(JobRow.fence == fence)
    columns: dict[str, Any] = {"state": to, **(values or {})}
    if to not in HELD:
        columns["yield_reason"] = None
    if to in TERMINAL:
        columns |= {"finished_at": time.time(), "phase": None, "lease_until": None}
    session.flush()
    job = session.scalar(
        statement.values(columns).returning(JobRow),
        execution_options={"populate_existing": True, "synchronize_session": False},
    )
    if job is not None:
        if to not in HELD:
            usage.settle(session, job, work_is_lost=work_is_lost)
        events.add(
            session,
            job,
            message,
            kind=EventKind.STATE,
            level=level,
            data={"state": to, **(data or {})},
        )
        if to in TERMINAL and job.attempt:
            job_health.derive(session, job)
    return job


def start(
    session: Session, job: JobRow, worker_id: str, lease_seconds: float
) -> tuple[float, float] | None:
    """Move a queued job to `running`, with a new attempt, fence and lease. Returns two times: the
    start of the lease, and the end of the period that is charged to the project in advance. Returns
    None if the job has been claimed since it was read. The object `job` is not updated. To make
    claims fast, the SQL statements are built only once per process."""
    values = {"job": job.id, "known": job.fence, "worker": worker_id, "lease": lease_seconds}
    row = session.execute(_START, values | {"now": time.time()}).one_or_none()
    if row is None:
        return None
    event = {
        "project_id": job.project_id, "job_id": job.id, "seq": row.last_seq,
        "created_at": time.time(), "attempt": job.attempt + 1, "kind": EventKind.STATE,
        "level": "info", "message": f"claimed by {worker_id}",
        "data": {"state": JobState.RUNNING, "worker_id": worker_id},
    }  # fmt: skip
    session.execute(_STARTED, event)
    return row.claimed_at, row.charged_until


_JOBS: Any = JobRow.__table__  # Any: a FromClause in SQLAlchemy's types
_START = (
    update(_JOBS)
    .where(
        _JOBS.c.id == bindparam("job"),
        _JOBS.c.state == JobState.QUEUED,
        _JOBS.c.fence == bindparam("known"),
    )
    .values(
        state=JobState.RUNNING,
        phase="claim",
        lease_owner=bindparam("worker"),
        lease_until=epoch_now() + bindparam("lease"),
        claimed_at=epoch_now(),
        charged_until=epoch_now() + usage.CHARGE_AHEAD_SECONDS,
        claimed_step=_JOBS.c.step,
        measured_at=None,
        measured_step=None,
        fence=_JOBS.c.fence + 1,
        attempt=_JOBS.c.attempt + 1,
        source_seq=0,
        started_at=func.coalesce(_JOBS.c.started_at, bindparam("now")),
        last_seq=_JOBS.c.last_seq + 1,
    )
    .returning(_JOBS.c.claimed_at, _JOBS.c.charged_until, _JOBS.c.last_seq)
)
_STARTED = cast(Any, EventRow.__table__).insert()  # Any: a FromClause in SQLAlchemy's types


def fail(
    session: Session,
    job_id: str,
    failure: JobFailure,
    *,
    fence: int | None = None,
    values: dict[str, Any] | None = None,
    work_is_lost: bool = False,
) -> JobRow | None:
    return move(
        session,
        job_id,
        JobState.FAILED,
        f"failed: {failure.message}",
        fence=fence,
        level="error",
        data={"code": failure.code, "category": failure.category, "hint": failure.hint},
        values={"error": failure.model_dump(mode="json"), **(values or {})},
        work_is_lost=work_is_lost,
    )


def invalid_file_code(param: str) -> ErrorCode:
    training = param == "training_file"
    return ErrorCode.INVALID_TRAINING_FILE if training else ErrorCode.INVALID_VALIDATION_FILE


def insert(
    session: Session,
    wake_ups: WakeUps,
    job: JobRow,
    file_rows: list[FileRow],
    first_events: list[EventRow],
) -> None:
    """Insert a new job with its first events, in the state `queued` if its files are validated. The
    caller has checked that no file is invalid."""
    added = list(first_events)
    job.state = JobState.VALIDATING_FILES
    if all(file.status == "processed" for file in file_rows):
        job.state = JobState.QUEUED
        job.queued_at = job.woken_at = time.time()
        message = _queued_message(stored_job.method_of(job), file_rows)
        added.append(
            events.new(job, message, kind=EventKind.STATE, data={"state": JobState.QUEUED})
        )
        wake_ups.send_after_commit(session, TRAIN_TASK, job.id)
    session.add(job)
    session.flush()  # before the rows that refer to the job
    session.add_all(added)


def queue_if_validated(
    session: Session, wake_ups: WakeUps, job: JobRow, file_rows: list[FileRow]
) -> None:
    """Queue a job if all its files are valid; fail the job if a file is invalid. If a file is not
    validated yet, the job stays unchanged."""
    method = stored_job.method_of(job)
    for param, file in zip(("training_file", "validation_file"), file_rows, strict=False):
        if reason := files.refusal(file, method):
            failure = JobFailure(
                category=ErrorCategory.DATA,
                code=invalid_file_code(param),
                message=f"{file.filename} cannot be {files.USE[method]}: {reason}"[:4000],
                hint="fix the rows and upload the file again",
                param=param,
            )
            fail(session, job.id, failure)
            return
    if all(file.status == "processed" for file in file_rows):
        enqueue(session, wake_ups, job.id, _queued_message(method, file_rows))


def _queued_message(method: MethodName, file_rows: list[FileRow]) -> str:
    rows = (file_rows[0].validation or {}).get("rows")
    return f"queued: {rows} {'prompts' if method == 'reinforcement' else 'training rows'}"


def enqueue(
    session: Session,
    wake_ups: WakeUps,
    job_id: str,
    message: str,
    *,
    fence: int | None = None,
    level: str = "info",
    values: dict[str, Any] | None = None,
    work_is_lost: bool = False,
) -> JobRow | None:
    """Move a job to `queued` and wake a worker after the commit. If a worker holds the job, call
    `job_control.release` instead of `enqueue`."""
    now = time.time()
    columns = {"queued_at": now, "woken_at": now, "phase": None, "lease_until": None}
    columns |= {"not_before": None}
    job = move(
        session, job_id, JobState.QUEUED, message, fence=fence, level=level,
        values=columns | (values or {}), work_is_lost=work_is_lost,
    )  # fmt: skip
    if job is not None:
        wake_ups.send_after_commit(session, TRAIN_TASK, job.id)
    return job


def retrieve(session: Session, job_id: str) -> JobRow:
    job = session.get(JobRow, job_id)
    if job is None:
        raise NotFound(
            ErrorCode.NOT_FOUND, f"no fine-tuning job {job_id!r}",
            hint="GET /v1/fine_tuning/jobs lists all jobs",
        )  # fmt: skip
    return job


def find(session: Session, job_ids: Collection[str]) -> dict[str, JobRow]:
    """Return the jobs by id, read by one query. Unknown ids are left out."""
    rows = session.scalars(select(JobRow).where(JobRow.id.in_(job_ids)))
    return {row.id: row for row in rows}


def lock(session: Session, job_id: str) -> JobRow:
    """Return the job's current row, locked until the transaction ends."""
    job = session.scalar(
        select(JobRow).where(JobRow.id == job_id).with_for_update(),
        execution_options={"populate_existing": True},
    )
    return job or retrieve(session, job_id)


def list_jobs(
    session: Session,
    *,
    after: str | None,
    limit: int,
    order: Order,
    filters: JobFilters,
    with_curve: bool = False,
) -> PageBuilder:
    query = job_summaries.query(with_curve).where(*filters.conditions(session))
    cursor = None
    if after:
        cursor = session.execute(
            select(JobRow.created_at, JobRow.id).where(JobRow.id == after)
        ).one_or_none()
        if cursor is None:
            raise unknown_cursor(after, "job")
    return read_page(
        session,
        query,
        (JobRow.created_at.expression, JobRow.id.expression),
        after=None if cursor is None else tuple(cursor),
        limit=limit,
        order=order,
        key_of=job_summaries.key_of,
        items_of=job_summaries.items_of,
    )
