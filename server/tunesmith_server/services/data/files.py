"""Uploaded files and their validation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy import delete as delete_rows
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tunesmith_schema import (
    TERMINAL,
    BadRows,
    ErrorCode,
    FileObject,
    FilePurpose,
    FileValidation,
    MethodName,
)
from tunesmith_schema.documents import Unreadable, read_document
from tunesmith_schema.queue import VALIDATE_FILE_TASK
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, Conflict, NotFound, Unavailable
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.models import EvaluationRow, FileRow, JobRow

from .. import blobs, quotas
from ..pages import PageBuilder, read_newest
from ..paging import Order
from . import file_uses

USE: dict[MethodName, str] = {
    "supervised": "trained on",
    "reinforcement": "used for reinforcement",
}
"""Words that follow "cannot be" in messages about an unusable file, for each method."""


def check_size(filename: str, size: int) -> None:
    """Refuse an empty file."""
    if size == 0:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST, f"file {filename!r} is empty", param="file",
            hint="check the path of the uploaded file",
        )  # fmt: skip


def create(
    session: Session,
    wake_ups: WakeUps,
    *,
    filename: str,
    purpose: FilePurpose,
    sha256: str,
    size: int,
    expires_in: int | None = None,
    request_key: str | None = None,
) -> tuple[FileObject, bool]:
    """Insert the database row of a file whose content is already stored. After the commit, a worker
    validates a data set. If a request with the same `request_key` already created the file,
    return that file and True."""
    if request_key and (earlier := _created_earlier(session, request_key)):
        if (earlier.sha256, earlier.purpose) != (sha256, purpose):
            raise Conflict(
                ErrorCode.IDEMPOTENCY_CONFLICT,
                f"the Idempotency-Key was used for another upload (file {earlier.id})",
                hint="use a new key for a new file",
            )
        return to_wire(earlier), True
    row = record(
        session, wake_ups, filename=filename, purpose=purpose, sha256=sha256, size=size,
        expires_in=expires_in,
    )  # fmt: skip
    row.request_key = request_key
    try:
        session.flush()
    except IntegrityError as error:  # another transaction used the same key (PostgreSQL only)
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            "another upload with this Idempotency-Key is in progress",
            hint="repeat the request: it returns the file that the other request creates",
        ) from error
    return to_wire(row), False


def _created_earlier(session: Session, request_key: str) -> FileRow | None:
    return session.scalar(select(FileRow).where(FileRow.request_key == request_key))


def record(
    session: Session,
    wake_ups: WakeUps,
    *,
    filename: str,
    purpose: FilePurpose,
    sha256: str,
    size: int,
    expires_in: int | None,
    counted: bool = False,
) -> FileRow:
    """Insert the row for content that is already stored; see `create`. `counted`: True if an
    upload has already counted the bytes for the quota."""
    if not counted:
        quotas.check(session, size)
    blobs.use(session, {sha256: size})
    now = time.time()
    row = FileRow(
        id=new_id("file"),
        created_at=now,
        expires_at=now + expires_in if expires_in else None,
        filename=plain_name(filename),
        purpose=purpose,
        bytes=size,
        sha256=sha256,
        status="uploaded" if purpose == FilePurpose.FINE_TUNE else "processed",
        woken_at=now,
        readings=0,
    )
    session.add(row)
    session.flush()
    if row.status == "uploaded":
        wake_ups.send_after_commit(session, VALIDATE_FILE_TASK, row.id)
    return row


def plain_name(filename: str) -> str:
    """Return the file name at the end of a client's path, without control characters."""
    last = filename.replace("\\", "/").rsplit("/", 1)[-1]
    plain = "".join(letter for letter in last if letter.isprintable()).strip()[:255]
    return plain if plain.strip(".") else "file"


def retrieve(
    session: Session,
    file_id: str,
    *,
    param: str | None = None,
    lock: bool | dict[str, bool] = False,
) -> FileRow:
    """Return the file's row.

    On PostgreSQL, `lock` locks the row until the transaction ends (`{"read": True}` takes a shared
    lock). With this lock, no other transaction can change or delete a job's file while a
    transaction creates the job.
    """
    row = session.get(FileRow, file_id, with_for_update=lock or None)
    if row is None:
        error = BadRequest if param else NotFound
        raise error(
            ErrorCode.NOT_FOUND, f"no file {file_id!r}", param=param,
            hint="GET /v1/files lists all files; POST /v1/files uploads one",
        )  # fmt: skip
    return row


def list_files(
    session: Session,
    *,
    after: str | None,
    limit: int,
    order: Order,
    purpose: str | None = None,
    sha256: str | None = None,
    text: str | None = None,
    with_uses: bool = False,
) -> PageBuilder:
    """Return a page of files. `text` is a part of the name or the id; `with_uses` counts the jobs
    and evaluations that use each file."""
    query = select(FileRow)
    if purpose:
        query = query.where(FileRow.purpose == purpose)
    if sha256:
        query = query.where(FileRow.sha256 == sha256)
    if text:
        parts = (
            column.icontains(text, autoescape=True) for column in (FileRow.filename, FileRow.id)
        )
        query = query.where(or_(*parts))
    return read_newest(
        session,
        query,
        FileRow,
        lambda rows: _listed(session, rows) if with_uses else map(to_wire, rows),
        after=after,
        limit=limit,
        order=order,
        what="file",
    )


def newest(session: Session, purpose: FilePurpose, limit: int) -> list[FileObject]:
    """Return the newest files of a purpose, in the same format as `list_files`."""
    rows = session.scalars(
        select(FileRow)
        .where(FileRow.purpose == purpose)
        .order_by(FileRow.created_at.desc(), FileRow.id.desc())
        .limit(limit)
    )
    return list(map(to_wire, rows))


def _listed(session: Session, rows: Sequence[FileRow]) -> list[FileObject]:
    counts = file_uses.count_uses(session, [row.id for row in rows])
    return [to_wire(row).model_copy(update={"num_uses": counts.get(row.id, 0)}) for row in rows]


def delete(session: Session, file_id: str) -> None:
    """Delete the row; the janitor deletes content that no row refers to."""
    row = retrieve(session, file_id, lock=True)
    if user := job_using(session, file_id):
        raise Conflict(
            ErrorCode.FILE_IN_USE,
            f"file {file_id!r} is used by job {user.id} ({user.state})",
            hint="cancel the job first, or wait until it has ended",
        )
    if evaluation := _evaluation_using(session, file_id):
        raise Conflict(
            ErrorCode.FILE_IN_USE,
            f"file {file_id!r} is used by evaluation {evaluation.id} ({evaluation.status})",
            hint="cancel the evaluation first, or wait until it has ended",
        )
    session.delete(row)


def delete_expired(session: Session) -> None:
    """Delete the rows of expired files that no unfinished job or evaluation needs.

    This function first locks the rows of the files, and then reads the jobs. A single DELETE could
    miss a job that another transaction just inserted, because PostgreSQL does not repeat a subquery
    after it has waited for a lock. A transaction that creates a job also locks the job's files."""
    expired = (
        select(FileRow)
        .where(FileRow.expires_at < time.time(), ~_is_needed())
        .with_for_update(skip_locked=True)
    )
    locked = [row.id for row in session.scalars(expired)]
    if locked:
        session.execute(
            delete_rows(FileRow).where(FileRow.id.in_(locked), ~_is_needed()),
            execution_options={"synchronize_session": False},
        )


def _is_needed() -> ColumnElement[bool]:
    job = exists().where(
        or_(JobRow.training_file == FileRow.id, JobRow.validation_file == FileRow.id),
        JobRow.finished_at.is_(None),
    )
    evaluation = exists().where(
        EvaluationRow.file == FileRow.id, EvaluationRow.finished_at.is_(None)
    )
    return or_(job, evaluation)


def job_using(session: Session, file_id: str) -> JobRow | None:
    """Return an unfinished job that needs this file, or None."""
    return session.scalar(
        select(JobRow)
        .where(
            or_(JobRow.training_file == file_id, JobRow.validation_file == file_id),
            JobRow.state.not_in(TERMINAL),
        )
        .limit(1)
    )


def _evaluation_using(session: Session, file_id: str) -> EvaluationRow | None:
    return session.scalar(
        select(EvaluationRow)
        .where(EvaluationRow.file == file_id, EvaluationRow.finished_at.is_(None))
        .limit(1)
    )


def record_validation(row: FileRow, result: FileValidation) -> None:
    row.validation = result.model_dump(mode="json")
    row.status = "processed" if result.ok else "error"
    row.status_details = None
    if not result.ok:
        bad_rows = BadRows(problems=result.problems, num_problems=result.num_problems)
        row.status_details = bad_rows.summary().replace("\0", "\ufffd")


def refusal(row: FileRow, method: MethodName) -> str | None:
    """Return the reason why a job of this method cannot use the file. None means that the file is
    usable or not yet validated."""
    if row.status == "error":
        return row.status_details or "no usable rows"
    if row.validation is None:
        return None
    try:
        reason = _validation(row.validation).unusable_reason(method)
    except Unreadable as error:
        return f"its validation result cannot be read: {error}; upload the file again"
    return reason and reason.replace("\0", "\ufffd")


def _validation(document: object) -> FileValidation:
    return read_document(FileValidation, document, "validation")


def to_wire(row: FileRow) -> FileObject:
    """Return the file; a row that this release cannot read has the status `error`."""
    try:
        return _to_wire(row)
    except (ValueError, TypeError) as error:
        return FileObject(
            id=row.id,
            bytes=row.bytes if isinstance(row.bytes, int) else 0,
            created_at=int(row.created_at) if isinstance(row.created_at, float) else 0,
            filename=str(row.filename),
            purpose=str(row.purpose),
            status="error",
            status_details=f"this release cannot read the file's row: {error}"[:2000],
            sha256=str(row.sha256),
        )


def _to_wire(row: FileRow) -> FileObject:
    return FileObject(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at),
        expires_at=int(row.expires_at) if row.expires_at else None,
        filename=row.filename,
        purpose=row.purpose,
        status=row.status,
        status_details=row.status_details,
        sha256=row.sha256,
        validation=_validation(row.validation) if row.validation is not None else None,
    )
