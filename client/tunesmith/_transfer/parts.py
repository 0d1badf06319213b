"""How one file travels in parts: hashed, sent, taken up where it broke off, compared at the end.

A part that the server has already is recognised by its sha256, computed here anew each time: a
wrong memory can cost time, never put wrong bytes into a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith._http.errors import BadRequestError, InvalidArgumentError, NotFoundError, UploadError
from tunesmith_schema import (
    MAX_PART_BYTES,
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_PARTS,
    Upload,
    UploadStatus,
)

from .source import Slice, Source
from .upload_memory import UploadMemory

if TYPE_CHECKING:
    from tunesmith._sdk.uploads import Uploads

Tell = Callable[[int], None]

_TRIES = 3
"""For a part that arrives damaged; connections and refusals have retries of their own."""


def send_in_parts(
    uploads: Uploads,
    source: Source,
    *,
    filename: str,
    mime_type: str,
    purpose: str,
    part_size: int,
    server: str,
    md5: str | None = None,
    tell: Tell | None = None,
) -> Upload:
    """The completed upload, begun anew or by an earlier call that was interrupted."""
    size = source.size()
    if size is None or not 0 < size <= MAX_UPLOAD_BYTES:
        raise InvalidArgumentError(
            f"{filename} cannot be sent in parts: it has "
            + ("no size that can be known" if size is None else f"{size:,} bytes"),
            hint=f"1 to {MAX_UPLOAD_BYTES:,} bytes can; split a larger data set",
        )
    if not 0 < part_size <= MAX_PART_BYTES:
        raise InvalidArgumentError(f"part_size must be 1-{MAX_PART_BYTES}, got {part_size}")
    if size > MAX_UPLOAD_PARTS * part_size:
        raise InvalidArgumentError(
            f"part_size {part_size} makes more than {MAX_UPLOAD_PARTS:,} parts of {size:,} bytes"
        )
    memory = source.path and UploadMemory(
        source.path, server, filename, mime_type, purpose, part_size
    )
    trip = _Trip(uploads=uploads, source=source, size=size, part_size=part_size, md5=md5, tell=tell)
    begun = _recalled(uploads, memory) if memory else None
    done = begun and _resume(trip, begun)
    if done is None:
        upload = uploads.create(bytes=size, filename=filename, mime_type=mime_type, purpose=purpose)
        if memory:
            memory.remember(upload.id, upload.expires_at)
        try:
            done = trip.go(upload)
        except (BadRequestError, UploadError):
            if memory:
                memory.forget()  # no other try can mend it
            raise
    if memory:
        memory.forget()
    return done


def _recalled(uploads: Uploads, memory: UploadMemory) -> Upload | None:
    upload_id = memory.recall()
    try:
        return uploads.retrieve(upload_id) if upload_id else None
    except NotFoundError:
        return None


def _resume(trip: _Trip, begun: Upload) -> Upload | None:
    """None when it is better to begin anew."""
    if begun.status is UploadStatus.COMPLETED and begun.file:
        # The last reply of the earlier call was lost.
        return begun if begun.file.sha256 == trip.sha256() else None
    if begun.status is not UploadStatus.PENDING or begun.bytes != trip.size:
        return None
    try:
        return trip.go(begun)
    except (BadRequestError, UploadError):
        return None  # expired under way, full, or damaged


@dataclass(frozen=True, kw_only=True)
class _Trip:
    """One file on its way."""

    uploads: Uploads
    source: Source
    size: int
    part_size: int
    md5: str | None
    tell: Tell | None

    def go(self, upload: Upload) -> Upload:
        """Send what has not arrived, then complete."""
        arrived = {part.sha256: part.id for part in upload.parts or ()}
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        part_ids = []
        for start in range(0, self.size, self.part_size):
            piece = Slice(
                self.source.content, start, min(self.part_size, self.size - start), self.tell
            )
            digest = self._hash(start, piece.size, sha256, md5)
            if digest not in arrived:
                arrived[digest] = self._send(upload.id, piece, digest)
            elif self.tell:
                self.tell(start + piece.size)
            part_ids.append(arrived[digest])
        done = self.uploads.complete(upload.id, part_ids=part_ids, md5=self.md5 or md5.hexdigest())
        if done.file and done.file.sha256 not in (None, sha256.hexdigest()):
            raise UploadError(
                f"{done.file.id} has the sha256 {done.file.sha256} on the server, "
                f"and {sha256.hexdigest()} here",
                hint="do not use that file: delete it, and upload it again",
            )
        return done

    def sha256(self) -> str:
        digest = hashlib.sha256()
        self._hash(0, self.size, digest)
        return digest.hexdigest()

    def _hash(self, start: int, size: int, *wholes: hashlib._Hash) -> str:
        """sha256 of a piece, which is added to `wholes` too."""
        piece, own, read = Slice(self.source.content, start, size), hashlib.sha256(), 0
        while chunk := piece.read(1024 * 1024):
            read += len(chunk)
            for digest in (own, *wholes):
                digest.update(chunk)
        if read != size:
            raise UploadError(f"{self.source.filename} became shorter while it was being sent")
        return own.hexdigest()

    def _send(self, upload_id: str, piece: Slice, sha256: str) -> str:
        for _ in range(_TRIES):
            part = self.uploads.parts.create(upload_id, data=piece)
            if part.sha256 == sha256:
                return part.id
        raise UploadError(
            f"a part of {self.source.filename} arrived {_TRIES} times as something else",
            hint="was the file written to meanwhile?",
        )
