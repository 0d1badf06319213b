"""Job state: the one place that writes it.

`move` is the only way a job changes state: a conditional UPDATE along the table of legal
transitions, logged as an event in the same transaction. Leases build on it in leases.py.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

from pydantic import JsonValue
from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tunesmith_schema import (
    TERMINAL,
    TRANSITIONS,
    ErrorCategory,
    ErrorCode,
    EventKind,
    Hyperparameters,
    Job,
    JobCreate,
    JobError,
    JobFailure,
    JobState,
    Page,
    Recipe,
    wire_status,
)
from tunesmith_schema.queue import TRAIN_TASK

from ..database import new_id
from ..errors import BadRequest, Conflict, NotFound, Unavailable
from ..models import FileRow, IdempotencyRow, JobRow
from ..queue import WakeUps
from ..settings import Settings
from . import base_models, events, files
from .paging import Order, fetch_page, unknown_cursor

REPLAY_SECONDS = 300.0
"""A client's automatic retry of a create (no key, same body) is recognised for this long."""


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
) -> JobRow | None:
    """Change a job's state, if it may and nobody was faster. None: nothing was changed.

    `fence` makes the change conditional on the fencing token; `values` are columns set along.
    """
    sources = [old for old, new in TRANSITIONS.items() if to in new]
    if only_from is not None:
        sources = [old for old in sources if old in only_from]
    statement = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(sources))
    if fence is not None:
        statement = statement.where(JobRow.fence == fence)
    columns: dict[str, Any] = {"state": to, **(values or {})}
    if to in TERMINAL:
        columns |= {"finished_at": time.time(), "phase": None, "lease_until": None}
    session.flush()
    job = session.scalar(
        statement.values(columns).returning(JobRow),
        execution_options={"populate_existing": True, "synchronize_session": False},
    )
    if job is not None:
        events.add(
            session,
            job,
            message,
            kind=EventKind.STATE,
            level=level,
            data={"state": to, **(data or {})},
        )
    return job


def fail(
    session: Session,
    job_id: str,
    failure: JobFailure,
    *,
    fence: int | None = None,
    values: dict[str, Any] | None = None,
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
    )


def create(
    session: Session,
    settings: Settings,
    wake_ups: WakeUps,
    body: JobCreate,
    *,
    owner: str,
    idempotency_key: str | None = None,
    is_retry: bool = False,
) -> tuple[Job, bool]:
    """Make a job, or find the one this request already made; also whether it is that one."""
    digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
    if earlier := _made_before(session, owner, digest, idempotency_key, is_retry):
        return to_wire(earlier), True
    base = base_models.choose(session, settings, body.model)
    row_files = [_usable_file(session, body.training_file, "training_file")]
    if body.validation_file:
        row_files.append(_usable_file(session, body.validation_file, "validation_file"))
    now = time.time()
    job = JobRow(
        id=new_id("ftjob"),
        state=JobState.VALIDATING_FILES,
        created_at=now,
        owner=owner,
        body_sha256=digest,
        model=base.name,
        base_adapter_id=base.adapter_id,
        training_file=body.training_file,
        validation_file=body.validation_file,
        suffix=body.suffix,
        seed=secrets.randbelow(2**31) if body.seed is None else body.seed,
        labels=body.metadata,
        recipe=body.recipe.model_dump(mode="json"),
        hyperparameters=body.chosen_hyperparameters().model_dump(mode="json"),
        method=body.method.model_dump(mode="json") if body.method else None,
        last_seq=0,
    )
    session.add(job)
    session.flush()
    if idempotency_key:
        session.add(
            IdempotencyRow(
                owner=owner, key=idempotency_key, body_sha256=digest, job_id=job.id, created_at=now
            )
        )
    events.add(session, job, f"created: {base.name} on {row_files[0].filename}")
    if warning := base_models.why_it_waits(base):
        events.add(session, job, warning, level="warn")
    try:
        session.flush()
    except IntegrityError as error:  # the same key in another transaction (PostgreSQL only)
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            f"a request with Idempotency-Key {idempotency_key!r} is being served right now",
            hint="send it again: the answer is the job that the other one made",
        ) from error
    queue_if_validated(session, wake_ups, job, row_files)
    return to_wire(job), False


def _made_before(
    session: Session, owner: str, digest: str, key: str | None, is_retry: bool
) -> JobRow | None:
    if key:
        known = session.get(IdempotencyRow, (owner, key))
        if known is None:
            return None
        if known.body_sha256 != digest:
            raise Conflict(
                ErrorCode.IDEMPOTENCY_CONFLICT,
                f"Idempotency-Key {key!r} was used for a different request (job {known.job_id})",
                hint="use a new key for a new job",
            )
        return session.get(JobRow, known.job_id)
    if not is_retry:
        return None
    return session.scalar(
        select(JobRow)
        .where(
            JobRow.owner == owner,
            JobRow.body_sha256 == digest,
            JobRow.created_at > time.time() - REPLAY_SECONDS,
        )
        .order_by(JobRow.created_at.desc())
        .limit(1)
    )


def _usable_file(session: Session, file_id: str, param: str) -> FileRow:
    row = files.retrieve(session, file_id, param=param, lock={"read": True})
    if row.purpose != "fine-tune":
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"{param}: file {file_id!r} was uploaded for {row.purpose!r}",
            param=param,
            hint="upload it with purpose 'fine-tune'",
        )
    if row.status == "error":
        raise BadRequest(
            _invalid_file_code(param),
            f"{param}: {row.filename} cannot be trained on: {row.status_details}",
            param=param,
            hint=f"GET /v1/files/{file_id} lists the bad rows under validation.problems",
        )
    return row


def _invalid_file_code(param: str) -> ErrorCode:
    training = param == "training_file"
    return ErrorCode.INVALID_TRAINING_FILE if training else ErrorCode.INVALID_VALIDATION_FILE


def queue_if_validated(
    session: Session, wake_ups: WakeUps, job: JobRow, of_job: list[FileRow]
) -> None:
    """Queue a job whose files are all read and good; fail it on a bad one; else leave it."""
    for param, file in zip(("training_file", "validation_file"), of_job, strict=False):
        if file.status == "error":
            failure = JobFailure(
                category=ErrorCategory.DATA,
                code=_invalid_file_code(param),
                message=f"{file.filename} cannot be trained on: {file.status_details}"[:4000],
                hint="mend the rows and upload the file again",
                param=param,
            )
            fail(session, job.id, failure)
            return
    if all(file.status == "processed" for file in of_job):
        rows = (of_job[0].validation or {}).get("rows")
        enqueue(session, wake_ups, job.id, f"queued: {rows} training rows")


def enqueue(
    session: Session,
    wake_ups: WakeUps,
    job_id: str,
    message: str,
    *,
    fence: int | None = None,
    level: str = "info",
    values: dict[str, Any] | None = None,
) -> JobRow | None:
    """Move a job to `queued` and wake a worker after the commit."""
    now = time.time()
    columns = {"queued_at": now, "woken_at": now, "phase": None, "lease_until": None}
    columns |= {"not_before": None}
    job = move(
        session, job_id, JobState.QUEUED, message, fence=fence, level=level,
        values=columns | (values or {}),
    )  # fmt: skip
    if job is not None:
        wake_ups.send_after_commit(session, TRAIN_TASK, job.id)
    return job


def file_validated(session: Session, wake_ups: WakeUps, file: FileRow) -> None:
    """Let the jobs that wait for this file go on."""
    waiting = session.scalars(
        select(JobRow).where(
            JobRow.state == JobState.VALIDATING_FILES,
            (JobRow.training_file == file.id) | (JobRow.validation_file == file.id),
        )
    )
    for job in list(waiting):
        ids = [job.training_file] + ([job.validation_file] if job.validation_file else [])
        of_job = [row for row in (session.get(FileRow, file_id) for file_id in ids) if row]
        queue_if_validated(session, wake_ups, job, of_job)


def retrieve(session: Session, job_id: str) -> JobRow:
    job = session.get(JobRow, job_id)
    if job is None:
        raise NotFound(
            ErrorCode.NOT_FOUND, f"no fine-tuning job {job_id!r}",
            hint="GET /v1/fine_tuning/jobs lists them",
        )  # fmt: skip
    return job


def list_jobs(
    session: Session,
    *,
    after: str | None,
    limit: int,
    order: Order,
    metadata: dict[str, str] | None,
    without_metadata: bool = False,
) -> Page[Job]:
    query = select(JobRow)
    for key, value in (metadata or {}).items():
        query = query.where(_has_label(session, key, value))
    if without_metadata:
        query = query.where(JobRow.labels.is_(None))
    cursor = None
    if after:
        last = session.get(JobRow, after)
        if last is None:
            raise unknown_cursor(after, "job")
        cursor = (last.created_at, last.id)
    keys = (JobRow.created_at.expression, JobRow.id.expression)
    rows, more = fetch_page(session, query, keys, after=cursor, limit=limit, order=order)
    data = [to_wire(row) for row in rows]
    return Page(
        data=data,
        has_more=more,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def _has_label(session: Session, key: str, value: str) -> ColumnElement[bool]:
    """Whether `metadata` has this pair. A JSON path could not spell every key on SQLite."""
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    pairs_of = func.json_each_text if on_postgresql else func.json_each
    pair = pairs_of(JobRow.labels).table_valued("key", "value")
    return exists().where(pair.c.key == key, pair.c.value == value)


def cancel(session: Session, job_id: str) -> Job:
    """Cancel at once where no worker holds the job; else ask its worker, which obeys within 5 s."""
    idle = {JobState.VALIDATING_FILES, JobState.QUEUED, JobState.PAUSED}
    for _ in range(2):  # on PostgreSQL a job may change sides between the two statements
        job = move(session, job_id, JobState.CANCELLED, "cancelled", only_from=idle)
        if job is not None:
            return to_wire(job)
        asked = session.scalar(
            update(JobRow)
            .where(
                JobRow.id == job_id,
                JobRow.state.in_((JobState.RUNNING, JobState.PAUSING)),
                JobRow.cancel_requested.is_(False),
            )
            .values(cancel_requested=True)
            .returning(JobRow),
            execution_options={"populate_existing": True, "synchronize_session": False},
        )
        if asked is not None:
            events.add(session, asked, "cancel requested")
            return to_wire(asked)
    known = retrieve(session, job_id)
    if JobState(known.state) in TERMINAL and known.state != JobState.CANCELLED:
        raise BadRequest(
            ErrorCode.NOT_CANCELLABLE, f"job {job_id!r} has already {known.state}",
            hint="only a job that has not ended can be cancelled",
        )  # fmt: skip
    return to_wire(known)


def to_wire(row: JobRow) -> Job:
    hyperparameters = Hyperparameters.model_validate(row.hyperparameters)
    state = JobState(row.state)
    return Job(
        id=row.id,
        created_at=int(row.created_at),
        finished_at=int(row.finished_at) if row.finished_at else None,
        model=row.model,
        fine_tuned_model=row.fine_tuned_model,
        status=wire_status(state),
        training_file=row.training_file,
        validation_file=row.validation_file,
        hyperparameters=hyperparameters,
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": hyperparameters.model_dump(mode="json")},
        },
        result_files=[],
        trained_tokens=row.trained_tokens,
        error=JobError.model_validate(row.error) if row.error else None,
        integrations=None,
        metadata=row.labels,
        seed=row.seed,
        suffix=row.suffix,
        state=state,
        phase=row.phase,
        recipe=Recipe.model_validate(row.recipe),
        adapter_id=row.adapter_id,
        attempt=row.attempt or 0,
        step=row.step or 0,
        total_steps=row.total_steps,
        cancel_requested=bool(row.cancel_requested),
    )
