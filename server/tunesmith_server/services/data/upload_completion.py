"""Completion of uploads: joins the parts into one file. The janitor later deletes the parts.

`plan` and `finish` are short and use the database; `assemble` is slow and uses only storage.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, FilePurpose, Upload, UploadComplete, UploadStatus
from tunesmith_server.core.errors import BadRequest, Unavailable
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import UploadPartRow, UploadRow

from .. import blobs
from . import files, uploads

EXPIRY_GRACE_SECONDS = 600.0
"""An upload is marked as expired at the earliest this many seconds after its `expires_at`. In this
time, a completion that started before the expiry can still end."""
FORGET_SECONDS = 24 * 3600.0
MAX_DELETED = 1000
"""Maximum number of parts that one round of the janitor deletes."""


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Parts to assemble."""

    upload_id: str
    part_ids: list[str]
    bytes: int
    md5: str | None


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """Assembled content."""

    sha256: str
    bytes: int


def plan(session: Session, upload_id: str, body: UploadComplete) -> Assembly | Upload:
    """Return the parts to assemble, or the upload if it is already completed."""
    row = uploads.retrieve(session, upload_id)
    if result := _earlier_result(session, row, body):
        return result
    uploads.check_open(row)
    sizes = {
        part.id: part.bytes
        for part in session.scalars(
            select(UploadPartRow).where(UploadPartRow.upload_id == upload_id)
        )
    }
    for part_id in body.part_ids:
        if part_id not in sizes:
            raise BadRequest(
                ErrorCode.NOT_FOUND, f"upload {upload_id!r} has no part {part_id!r}",
                param="part_ids", hint="GET /v1/uploads/ID lists the received parts",
            )  # fmt: skip
    total = sum(sizes[part_id] for part_id in body.part_ids)
    if total != row.bytes:
        raise BadRequest(
            ErrorCode.UPLOAD_MISMATCH,
            f"the {len(body.part_ids)} parts have {total:,} bytes in total; "
            f"the upload was created with {row.bytes:,}",
            param="part_ids", hint="check part_ids for missing and repeated parts",
        )  # fmt: skip
    return Assembly(upload_id=upload_id, part_ids=body.part_ids, bytes=total, md5=body.md5)


def assemble(storage: Storage, work: Assembly, announce: Callable[[str, int], None]) -> Assembled:
    """Read the stored parts twice: first to compute the sha256, then to store the content under
    this sha256. Only a few pieces are in memory at a time. `announce` commits the content's row."""
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    try:
        for piece in _pieces(storage, work):
            sha256.update(piece)
            if work.md5:
                md5.update(piece)
            size += len(piece)
        if size != work.bytes:
            raise RuntimeError(f"{work.upload_id}: {size} bytes in storage, not {work.bytes}")
        if work.md5 and md5.hexdigest() != work.md5.lower():
            raise BadRequest(
                ErrorCode.UPLOAD_MISMATCH,
                f"the assembled parts have the md5 {md5.hexdigest()}, not {work.md5}",
                param="md5", hint="check the order of part_ids; GET /v1/uploads/ID lists each "
                "part's sha256",
            )  # fmt: skip
        announce(sha256.hexdigest(), size)
        if not storage.is_good(sha256.hexdigest(), size):
            storage.put_pieces(_pieces(storage, work), sha256.hexdigest())
    except FileNotFoundError as error:
        # Another request may have completed the upload; the janitor then deletes the parts.
        raise Unavailable(
            ErrorCode.UNAVAILABLE, f"parts of upload {work.upload_id!r} have been deleted",
            hint="repeat the request: another request may have completed the upload",
        ) from error  # fmt: skip
    return Assembled(sha256=sha256.hexdigest(), bytes=size)


def _pieces(storage: Storage, work: Assembly) -> Iterator[bytes]:
    for part_id in work.part_ids:
        yield from storage.stream_part(part_id)


def finish(
    session: Session, wake_ups: WakeUps, upload_id: str, body: UploadComplete, content: Assembled
) -> Upload:
    """Insert the file's row exactly once, even if other requests complete or cancel the upload."""
    row = uploads.retrieve(session, upload_id, lock=True)
    if result := _earlier_result(session, row, body):
        return result
    if row.status != UploadStatus.PENDING:
        raise uploads.closed(row)
    file = files.record(
        session,
        wake_ups,
        filename=row.filename,
        purpose=FilePurpose(row.purpose),
        sha256=content.sha256,
        size=content.bytes,
        expires_in=row.file_seconds,
        counted=True,
    )
    row.status, row.part_ids, row.file_id = UploadStatus.COMPLETED, body.part_ids, file.id
    return uploads.to_wire(session, row)


def _earlier_result(session: Session, row: UploadRow, body: UploadComplete) -> Upload | None:
    if row.status == UploadStatus.COMPLETED and row.part_ids == body.part_ids:
        return uploads.to_wire(session, row)
    return None


def expire(session: Session) -> None:
    """Mark overdue uploads as expired, and delete the rows of uploads that closed long ago."""
    now = time.time()
    session.execute(
        update(UploadRow)
        .where(
            UploadRow.status == UploadStatus.PENDING,
            UploadRow.expires_at < now - EXPIRY_GRACE_SECONDS,
        )
        .values(status=UploadStatus.EXPIRED)
    )
    session.execute(
        delete(UploadRow).where(
            UploadRow.status != UploadStatus.PENDING,
            UploadRow.expires_at < now - FORGET_SECONDS,
            UploadRow.id.not_in(select(UploadPartRow.upload_id)),
        )
    )


def leftover_parts(session: Session) -> dict[str, int]:
    """Return at most MAX_DELETED parts of closed uploads. The keys are ids of parts, the values are
    sizes in bytes."""
    query = (
        select(UploadPartRow.id, UploadPartRow.bytes)
        .join(UploadRow, UploadRow.id == UploadPartRow.upload_id)
        .where(UploadRow.status != UploadStatus.PENDING)
        .limit(MAX_DELETED)
    )
    return {part_id: size for part_id, size in session.execute(query)}


def delete_part_rows(session: Session, part_ids: list[str]) -> None:
    """Delete the rows of parts that were deleted from storage."""
    blobs.forget(session, part_ids)
    session.execute(delete(UploadPartRow).where(UploadPartRow.id.in_(part_ids)))
