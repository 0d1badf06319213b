"""Adapters and full weights: stored from worker reports, downloaded as single files or as a tar."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tunesmith_schema import Adapter, ErrorCode, StoredFile
from tunesmith_schema.verification import VERIFICATION_FILE
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, Forbidden, NotFound
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import AdapterRow, CheckpointRow, JobRow, ModelPermissionRow
from tunesmith_server.models.scope import all_projects, project_of

from ..pages import PageBuilder, read_newest
from ..paging import Order

_BLOCK = 512


def record(
    session: Session, job: JobRow, *, model: str, kind: str, step: int, files: list[StoredFile]
) -> AdapterRow:
    """Insert the row of a job's weights. If an earlier attempt has inserted a row with this name,
    replace its values.
    """
    row = session.scalar(
        select(AdapterRow).where(AdapterRow.model == model, AdapterRow.job_id == job.id)
    )
    if row is None:
        row = AdapterRow(id=new_id("adp"), model=model, project_id=job.project_id)
        session.add(row)
    row.created_at = time.time()
    row.job_id, row.base_model, row.kind, row.step = job.id, job.model, kind, step
    row.files = [file.model_dump() for file in sorted(files, key=lambda file: file.name)]
    row.bytes = sum(file.bytes for file in files)
    session.flush()
    return row


def record_checkpoint(
    session: Session,
    job: JobRow,
    *,
    model: str,
    kind: str,
    step: int,
    metrics: dict[str, float | None],
    files: list[StoredFile],
) -> AdapterRow:
    adapter = record(session, job, model=model, kind=kind, step=step, files=files)
    row = session.scalar(
        select(CheckpointRow).where(CheckpointRow.job_id == job.id, CheckpointRow.step == step)
    )
    if row is None:
        row = CheckpointRow(
            id=new_id("ftckpt"), job_id=job.id, step=step, project_id=job.project_id
        )
        session.add(row)
    row.created_at = time.time()
    row.model, row.metrics, row.adapter_id = model, metrics, adapter.id
    return adapter


def retrieve(session: Session, adapter_id: str) -> AdapterRow:
    row = session.get(AdapterRow, adapter_id)
    if row is None:
        raise NotFound(
            ErrorCode.NOT_FOUND, f"no adapter {adapter_id!r}",
            hint="GET /v1/fine_tuning/jobs/ID has the adapter_id of a succeeded job",
        )  # fmt: skip
    return row


def list_adapters(session: Session, *, after: str | None, limit: int, order: Order) -> PageBuilder:
    """Return the adapters and full weights of all jobs, newest first."""
    return read_newest(
        session,
        select(AdapterRow),
        AdapterRow,
        lambda rows: map(_to_wire_listed, rows),
        after=after,
        limit=limit,
        order=order,
        what="adapter",
    )


def _to_wire_listed(row: AdapterRow) -> Adapter:
    """Return the adapter.

    If this release cannot read the list of files, return the adapter without files.
    """
    try:
        return to_wire(row)
    except NotFound:
        return _to_wire(row, [])


def files_of(row: AdapterRow) -> list[StoredFile]:
    """Return the files of an adapter. Raises NotFound if the row cannot be read."""
    try:
        return [StoredFile.model_validate(file) for file in row.files]
    except (ValueError, TypeError) as error:
        raise _unreadable(row, error) from error


def _unreadable(row: AdapterRow, error: Exception) -> NotFound:
    return NotFound(
        ErrorCode.UNREADABLE,
        f"this release cannot read the row of adapter {row.id!r}: {error}"[:2000],
        hint="another release wrote the row: install that release",
    )


def find_file(row: AdapterRow, name: str) -> StoredFile:
    files = files_of(row)
    for file in files:
        if file.name == name:
            return file
    names = ", ".join(file.name for file in files)
    raise NotFound(
        ErrorCode.NOT_FOUND, f"adapter {row.id!r} has no file {name!r}", hint=f"its files: {names}"
    )


def delete_model(session: Session, name: str) -> None:
    """Delete a tuned model; the janitor's next sweep deletes the stored files."""
    row = session.scalar(select(AdapterRow).where(AdapterRow.model == name).with_for_update())
    if row is None:
        raise NotFound(
            ErrorCode.MODEL_NOT_FOUND, f"no tuned model {name!r}",
            hint="GET /v1/models lists tuned models; base models cannot be deleted",
        )  # fmt: skip
    if project_of(session) not in (None, row.project_id):
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"model {name!r} belongs to another project, which shares it with yours",
            hint="only the project that trained the model can delete it",
        )
    users = select(JobRow.id, JobRow.state, JobRow.project_id).where(
        JobRow.base_adapter_id == row.id,
        JobRow.state.not_in(("succeeded", "failed", "cancelled")),
    )
    if user := session.execute(all_projects(users)).first():
        raise BadRequest(
            ErrorCode.FILE_IN_USE,
            f"model {name!r} is the base of {named_user(row.project_id, user)}",
            hint="cancel that job first, or wait until it has ended",
        )
    for checkpoint in session.scalars(
        select(CheckpointRow).where(CheckpointRow.adapter_id == row.id)
    ):
        session.delete(checkpoint)
    job = session.get(JobRow, row.job_id)
    if job is not None and job.adapter_id == row.id:
        job.adapter_id = None
    session.flush()
    session.delete(row)
    forget_permissions(session, [name])


def named_user(project_id: str, user: Any) -> str:  # Any: a row with id, state and project_id
    """Return the text that names a job in an error message for the project `project_id`. The text
    leaves out the id if the job belongs to another project.
    """
    if user.project_id != project_id:
        return "a job of another project"
    return f"job {user.id} ({user.state})"


def forget_permissions(session: Session, models: Sequence[str]) -> None:
    """Delete the permissions of deleted models."""
    session.execute(delete(ModelPermissionRow).where(ModelPermissionRow.model.in_(models)))


def to_wire(row: AdapterRow) -> Adapter:
    try:
        return _to_wire(row, files_of(row))
    except (ValueError, TypeError) as error:
        raise _unreadable(row, error) from error


def _to_wire(row: AdapterRow, files: list[StoredFile]) -> Adapter:
    verification = next((file for file in files if file.name == VERIFICATION_FILE), None)
    return Adapter(
        id=row.id,
        created_at=int(row.created_at),
        job_id=row.job_id,
        model=row.model,
        base_model=row.base_model,
        kind=row.kind,
        step=row.step,
        bytes=row.bytes,
        files=files,
        # A worker uploads verification.json only after a successful read-back.
        verified=None if verification is None else True,
        verification_sha256=None if verification is None else verification.sha256,
    )


def tar_bytes(row: AdapterRow) -> int:
    """Return the size in bytes of the tar that `tar_stream` yields."""
    blocks: int = sum(1 + -(-file.bytes // _BLOCK) for file in files_of(row))
    return (blocks + 2) * _BLOCK


def tar_stream(row: AdapterRow, storage: Storage) -> Iterator[bytes]:
    """Yield an uncompressed tar of all files; every call yields the same bytes."""
    for file in files_of(row):
        info = tarfile.TarInfo(file.name)
        info.size, info.mtime, info.mode = file.bytes, int(row.created_at), 0o644
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from storage.stream(file.sha256, 0, file.bytes)
        yield b"\0" * (-file.bytes % _BLOCK)
    yield b"\0" * (2 * _BLOCK)
