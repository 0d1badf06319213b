"""Upload of one file in parts: parts are hashed and sent, and the whole file is verified at the
end. An interrupted upload can be resumed.

Parts that the server already has are recognised by their sha256. Every call computes the sha256 of
each part from the file itself. Therefore a wrong record of an interrupted upload (upload_record.py)
costs time, but cannot cause wrong bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tunesmith._http.errors import (
    BadRequestError,
    InvalidArgumentError,
    NotFoundError,
    UploadError,
)
from tunesmith_schema import (
    MAX_PART_BYTES,
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_PARTS,
    Upload,
    UploadPart,
    UploadStatus,
)

from .source import Report, Slice, Source
from .upload_record import UploadRecord

_TRIES = 3
"""Maximum number of times that a part is sent if it arrives damaged; retries after connection
errors are counted separately."""


class PartRequests(Protocol):
    """The methods of `client.uploads.parts` that this module calls."""

    def create(self, upload_id: str, *, data: Slice) -> UploadPart: ...


class UploadRequests(Protocol):
    """The methods of `client.uploads` that this module calls."""

    @property
    def parts(self) -> PartRequests: ...

    def create(self, *, bytes: int, filename: str, mime_type: str, purpose: str) -> Upload: ...

    def retrieve(self, upload_id: str) -> Upload: ...

    def complete(self, upload_id: str, *, part_ids: Sequence[str], md5: str | None) -> Upload: ...


def send_in_parts(
    uploads: UploadRequests,
    source: Source,
    *,
    filename: str,
    mime_type: str,
    purpose: str,
    part_size: int,
    server: str,
    md5: str | None = None,
    report: Report | None = None,
) -> Upload:
    """Upload a file in parts, or resume an interrupted upload; return the completed upload."""
    size = source.size()
    if size is None or not 0 < size <= MAX_UPLOAD_BYTES:
        raise InvalidArgumentError(
            f"{filename} cannot be uploaded in parts: "
            + ("its size is unknown" if size is None else f"it has {size:,} bytes"),
            hint=f"a file may have 1 to {MAX_UPLOAD_BYTES:,} bytes; split a larger data set",
        )
    if not 0 < part_size <= MAX_PART_BYTES:
        raise InvalidArgumentError(f"part_size must be 1 to {MAX_PART_BYTES}, got {part_size}")
    if size > MAX_UPLOAD_PARTS * part_size:
        raise InvalidArgumentError(
            f"part_size {part_size} splits {size:,} bytes into more than {MAX_UPLOAD_PARTS:,} parts"
        )
    record = source.path and UploadRecord(
        source.path, server, filename, mime_type, purpose, part_size
    )
    transfer = _Transfer(
        uploads=uploads, source=source, size=size, part_size=part_size, md5=md5, report=report
    )
    interrupted = _interrupted(uploads, record) if record else None
    completed = interrupted and _resume(transfer, interrupted)
    if completed is None:
        upload = uploads.create(bytes=size, filename=filename, mime_type=mime_type, purpose=purpose)
        if record:
            record.save(upload.id, upload.expires_at)
        try:
            completed = transfer.run(upload)
        except (BadRequestError, UploadError):
            if record:
                record.delete()  # resuming this upload would fail as well
            raise
    if record:
        record.delete()
    return completed


def _interrupted(uploads: UploadRequests, record: UploadRecord) -> Upload | None:
    upload_id = record.load()
    try:
        return uploads.retrieve(upload_id) if upload_id else None
    except NotFoundError:
        return None


def _resume(transfer: _Transfer, upload: Upload) -> Upload | None:
    if upload.status is UploadStatus.COMPLETED and upload.file:
        # The earlier call completed the upload, but its reply was lost.
        return upload if upload.file.sha256 == transfer.source.sha256() else None
    if upload.status is not UploadStatus.PENDING or upload.bytes != transfer.size:
        return None
    try:
        return transfer.run(upload)
    except (BadRequestError, UploadError):
        return None  # the upload has expired, is full, or has a damaged part


@dataclass(frozen=True, kw_only=True)
class _Transfer:
    uploads: UploadRequests
    source: Source
    size: int
    part_size: int
    md5: str | None
    report: Report | None

    def run(self, upload: Upload) -> Upload:
        arrived = {part.sha256: part.id for part in upload.parts or ()}
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        part_ids = []
        for start in range(0, self.size, self.part_size):
            part = Slice(
                self.source.content, start, min(self.part_size, self.size - start), self.report
            )
            digest = self._hash(start, part.size, sha256, md5)
            if digest not in arrived:
                arrived[digest] = self._send(upload.id, part, digest)
            elif self.report:
                self.report(start + part.size)
            part_ids.append(arrived[digest])
        completed = self.uploads.complete(
            upload.id, part_ids=part_ids, md5=self.md5 or md5.hexdigest()
        )
        if completed.file and completed.file.sha256 not in (None, sha256.hexdigest()):
            raise UploadError(
                f"{completed.file.id} has sha256 {completed.file.sha256} on the server and "
                f"{sha256.hexdigest()} here",
                hint="delete the file on the server and upload it again",
            )
        return completed

    def _hash(self, start: int, size: int, *file_hashes: hashlib._Hash) -> str:
        part, part_hash, read = Slice(self.source.content, start, size), hashlib.sha256(), 0
        while chunk := part.read(1024 * 1024):
            read += len(chunk)
            for digest in (part_hash, *file_hashes):
                digest.update(chunk)
        if read != size:
            raise UploadError(f"{self.source.filename} became shorter during the upload")
        return part_hash.hexdigest()

    def _send(self, upload_id: str, content: Slice, sha256: str) -> str:
        for _ in range(_TRIES):
            part = self.uploads.parts.create(upload_id, data=content)
            if part.sha256 == sha256:
                return part.id
        raise UploadError(
            f"a part of {self.source.filename} arrived {_TRIES} times with a wrong sha256",
            hint="check that no program writes to the file during the upload",
        )
