"""How the parts of an upload become one file, and what the janitor does with the rest.

`plan` and `finish` are short and know the database; `assemble` takes long and knows storage only.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, FilePurpose, Upload, UploadComplete, UploadStatus
from tunesmith_server.core.errors import BadRequest, Unavailable
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import UploadPartRow, UploadRow

from . import files, uploads

EXPIRY_GRACE_SECONDS = 600.0
"""A completion that began in time may end after the expiry by as much."""
FORGET_SECONDS = 24 * 3600.0
MAX_DELETED = 1000
"""Parts that one round of the janitor deletes."""


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What is to be put together."""

    upload_id: str
    part_ids: list[str]
    bytes: int
    md5: str | None


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """What was."""

    sha256: str
    bytes: int


def plan(session: Session, upload_id: str, body: UploadComplete) -> Assembly | Upload:
    """The work to do, or the answer when it has been done before: a reply may be lost."""
    row = uploads.retrieve(session, upload_id)
    if answer := _answered(session, row, body):
        return answer
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
                param="part_ids", hint="GET /v1/uploads/ID lists the parts that have arrived",
            )  # fmt: skip
    total = sum(sizes[part_id] for part_id in body.part_ids)
    if total != row.bytes:
        raise BadRequest(
            ErrorCode.UPLOAD_MISMATCH,
            f"the {len(body.part_ids)} parts have {total:,} bytes together; "
            f"the upload was announced with {row.bytes:,}",
            param="part_ids", hint="is a part missing, or named twice?",
        )  # fmt: skip
    return Assembly(upload_id=upload_id, part_ids=body.part_ids, bytes=total, md5=body.md5)


def assemble(storage: Storage, work: Assembly) -> Assembled:
    """Two passes over the stored parts: one for the name (the sha256), one to store them under it.
    Holds no more than a few pieces in memory."""
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
                f"the parts have the md5 {md5.hexdigest()} together, not {work.md5}",
                param="md5", hint="are they in the right order? GET /v1/uploads/ID tells each "
                "part's sha256",
            )  # fmt: skip
        storage.put_pieces(_pieces(storage, work), sha256.hexdigest())
    except FileNotFoundError as error:
        # Somebody else's completion of this upload may have come first, and the janitor next.
        raise Unavailable(
            ErrorCode.UNAVAILABLE, f"parts of upload {work.upload_id!r} went away meanwhile",
            hint="ask again: it may have been completed already",
        ) from error  # fmt: skip
    return Assembled(sha256=sha256.hexdigest(), bytes=size)


def _pieces(storage: Storage, work: Assembly) -> Iterator[bytes]:
    for part_id in work.part_ids:
        yield from storage.stream_part(part_id)


def finish(
    session: Session, wake_ups: WakeUps, upload_id: str, body: UploadComplete, content: Assembled
) -> Upload:
    """The file's row, as `files.create` makes it; once, whoever else completes or cancels."""
    row = uploads.retrieve(session, upload_id, lock=True)
    if answer := _answered(session, row, body):
        return answer
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
    )
    row.status, row.part_ids, row.file_id = UploadStatus.COMPLETED, body.part_ids, file.id
    return uploads.to_wire(session, row)


def _answered(session: Session, row: UploadRow, body: UploadComplete) -> Upload | None:
    if row.status == UploadStatus.COMPLETED and row.part_ids == body.part_ids:
        return uploads.to_wire(session, row)
    return None


def expire(session: Session) -> None:
    """Close what was not completed in time, and forget what has long been over."""
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


def leftover_parts(session: Session) -> list[str]:
    """Parts of uploads that are over; some of them, when there are very many."""
    return list(
        session.scalars(
            select(UploadPartRow.id)
            .join(UploadRow, UploadRow.id == UploadPartRow.upload_id)
            .where(UploadRow.status != UploadStatus.PENDING)
            .limit(MAX_DELETED)
        )
    )


def forget_parts(session: Session, part_ids: list[str]) -> None:
    """To be called once they are gone from storage."""
    session.execute(delete(UploadPartRow).where(UploadPartRow.id.in_(part_ids)))
