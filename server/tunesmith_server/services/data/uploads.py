"""Uploads in parts: create an upload, add parts, cancel. upload_completion.py assembles the file.

Hashing and storing run outside a transaction, so that a large upload does not block other requests.
The upload may change while a part is hashed and stored, so the upload's state is checked again
afterwards, under a lock.
"""

from __future__ import annotations

import time
from typing import IO

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    MAX_PART_BYTES,
    MAX_UPLOAD_PARTS,
    UPLOAD_SECONDS,
    ErrorCode,
    Upload,
    UploadCreate,
    UploadPart,
    UploadStatus,
)
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import FileRow, UploadPartRow, UploadRow

from .. import blobs, quotas
from . import files


def create(session: Session, body: UploadCreate) -> Upload:
    quotas.check(session, body.bytes)
    now = time.time()
    row = UploadRow(
        id=new_id("upload"),
        created_at=now,
        expires_at=now + UPLOAD_SECONDS,
        status=UploadStatus.PENDING,
        bytes=body.bytes,
        filename=files.plain_name(body.filename),
        mime_type=body.mime_type,
        purpose=body.purpose,
        file_seconds=body.expires_after and body.expires_after.seconds,
    )
    session.add(row)
    session.flush()
    return to_wire(session, row)


def retrieve(session: Session, upload_id: str, *, lock: bool = False) -> UploadRow:
    row = session.get(UploadRow, upload_id, with_for_update=lock or None)
    if row is None:
        raise NotFound(
            ErrorCode.NOT_FOUND, f"no upload {upload_id!r}",
            hint="POST /v1/uploads creates an upload; uploads expire, and are deleted a day later",
        )  # fmt: skip
    return row


def show(session: Session, upload_id: str) -> Upload:
    """Return the upload with its received parts, so that the client can continue the upload."""
    row = retrieve(session, upload_id)
    parts = session.scalars(
        select(UploadPartRow)
        .where(UploadPartRow.upload_id == upload_id)
        .order_by(UploadPartRow.created_at, UploadPartRow.id)
    )
    wire = to_wire(session, row)
    wire.parts = [part_to_wire(part) for part in parts]
    return wire


def cancel(session: Session, upload_id: str) -> Upload:
    """Cancel an upload; repeating the request is safe. The janitor deletes the upload's parts."""
    row = retrieve(session, upload_id, lock=True)
    if row.status != UploadStatus.CANCELLED:
        check_open(row)
        row.status = UploadStatus.CANCELLED
    return to_wire(session, row)


def find_part(session: Session, upload_id: str, sha256: str, size: int) -> UploadPartRow | None:
    """Return the received part with this content, or None. Raises BadRequest if the upload is
    closed or `size` is out of range."""
    row = retrieve(session, upload_id)
    check_open(row)
    if not 0 < size <= min(MAX_PART_BYTES, row.bytes):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"data: the part has {size:,} bytes; the whole upload has {row.bytes:,}",
            param="data", hint=f"send 1 to {min(MAX_PART_BYTES, row.bytes):,} bytes",
        )  # fmt: skip
    return session.scalar(
        select(UploadPartRow).where(
            UploadPartRow.upload_id == upload_id, UploadPartRow.sha256 == sha256
        )
    )


def add_part(
    session: Session,
    storage: Storage,
    upload_id: str,
    content: IO[bytes],
    *,
    part_id: str,
    sha256: str,
    size: int,
) -> UploadPart:
    """Store the part, then insert its row.

    If the upload already has a part with this content, return that part, so that a client may
    repeat a request after a lost reply. Before the call, the caller must record the object
    `part_id` with `blobs.announce`.
    """
    part = None
    storage.put_part(content, part_id)
    try:
        part = _record_part(session, upload_id, part_id, sha256, size)
    finally:
        if part is None or part.id != part_id:
            storage.delete_part(part_id)
    return part


def _record_part(
    session: Session, upload_id: str, part_id: str, sha256: str, size: int
) -> UploadPart:
    row = retrieve(session, upload_id, lock=True)
    if known := find_part(session, upload_id, sha256, size):
        return part_to_wire(known)
    count, received = session.execute(
        select(func.count(), func.coalesce(func.sum(UploadPartRow.bytes), 0)).where(
            UploadPartRow.upload_id == upload_id
        )
    ).one()
    if count >= MAX_UPLOAD_PARTS or received + size > 2 * row.bytes:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"upload {upload_id!r} already has {count:,} parts with {received:,} bytes, "
            f"for a file of {row.bytes:,} bytes",
            param="data", hint="complete this upload, or create another upload; GET /v1/uploads/ID "
            "lists the parts",
        )  # fmt: skip
    part = UploadPartRow(
        id=part_id, upload_id=upload_id, created_at=time.time(), bytes=size, sha256=sha256
    )
    session.add(part)
    session.flush()
    blobs.use(session, {part_id: size})
    return part_to_wire(part)


def status_of(row: UploadRow) -> UploadStatus:
    if row.status == UploadStatus.PENDING and row.expires_at <= time.time():
        return UploadStatus.EXPIRED
    return UploadStatus(row.status)


def check_open(row: UploadRow) -> None:
    if status_of(row) is not UploadStatus.PENDING:
        raise closed(row)


def closed(row: UploadRow) -> BadRequest:
    return BadRequest(
        ErrorCode.UPLOAD_CLOSED, f"upload {row.id!r} is {status_of(row)}",
        hint="create a new upload with POST /v1/uploads",
    )  # fmt: skip


def to_wire(session: Session, row: UploadRow) -> Upload:
    file = session.get(FileRow, row.file_id) if row.file_id else None
    return Upload(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at),
        expires_at=int(row.expires_at),
        filename=row.filename,
        purpose=row.purpose,
        status=status_of(row),
        file=files.to_wire(file) if file else None,
    )


def part_to_wire(row: UploadPartRow) -> UploadPart:
    return UploadPart(
        id=row.id,
        created_at=int(row.created_at),
        upload_id=row.upload_id,
        bytes=row.bytes,
        sha256=row.sha256,
    )
