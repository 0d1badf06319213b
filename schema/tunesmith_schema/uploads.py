"""Uploads: large files sent in parts, in the format of OpenAI's `uploads` API."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .base import Request, Response, Text, with_example
from .files import FileObject, FilePurpose

MAX_UPLOAD_BYTES = 8 * 1024**3
"""Maximum size of an upload in bytes."""
MAX_PART_BYTES = 64 * 1024**2
"""Maximum size of a part in bytes."""
MAX_UPLOAD_PARTS = 10_000
"""Maximum number of parts of an upload."""
UPLOAD_SECONDS = 3600
"""Lifetime of an upload in seconds. An expired upload accepts no parts and cannot be completed."""

PartId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
Md5 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")]


class UploadStatus(StrEnum):
    """State of an upload, with OpenAI's values."""

    PENDING = "pending"
    """The upload accepts parts."""
    COMPLETED = "completed"
    """The parts were joined, and the file exists."""
    CANCELLED = "cancelled"
    """The client cancelled the upload."""
    EXPIRED = "expired"
    """The upload was not completed in time."""


class ExpiresAfter(Request):
    """Expiry of the file."""

    anchor: Literal["created_at"]
    """Start of the lifetime: the creation of the file."""
    seconds: int = Field(ge=3600, le=2_592_000)
    """Lifetime in seconds: 1 hour to 30 days."""


class UploadCreate(Request):
    """Request that starts an upload in parts."""

    model_config = with_example(
        {
            "bytes": 104_857_600,
            "filename": "rows.jsonl",
            "mime_type": "application/jsonl",
            "purpose": "fine-tune",
        }
    )

    bytes: int = Field(ge=1, le=MAX_UPLOAD_BYTES)
    """Size of the whole file in bytes."""
    filename: Annotated[Text, StringConstraints(min_length=1, max_length=1024)]
    """Name of the file. If the name contains a path, only the last part is kept."""
    mime_type: Annotated[Text, StringConstraints(max_length=255)]
    """Media type; stored, but not checked."""
    purpose: FilePurpose
    """Purpose of the file."""
    expires_after: ExpiresAfter | None = None
    """Expiry of the file; by default, the file never expires."""


class UploadComplete(Request):
    """Request to join the uploaded parts into a file."""

    part_ids: list[PartId] = Field(min_length=1, max_length=MAX_UPLOAD_PARTS, fail_fast=True)
    """Ids of the parts in file order; an id may occur more than once."""
    md5: Md5 | None = None
    """Hexadecimal MD5 of the whole file; the request is refused if the uploaded parts have another
    MD5."""


class UploadPart(Response):
    """An uploaded part."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    """Time of creation, Unix seconds."""
    upload_id: str
    """Id of the upload that the part belongs to."""
    bytes: int
    """Size of the part in bytes."""
    sha256: str
    """SHA-256 of the part, hexadecimal."""


class Upload(Response):
    """An upload in parts."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    """Announced size of the whole file in bytes."""
    created_at: int
    """Time of creation, Unix seconds."""
    expires_at: int
    """Expiry time, Unix seconds; an expired upload accepts no parts and cannot be completed."""
    filename: str
    """Name of the file."""
    purpose: str
    """Purpose of the file."""
    status: UploadStatus
    """State of the upload."""
    file: FileObject | None = None
    """The resulting file, once `status` is `completed`; null if the file has been deleted."""
    parts: list[UploadPart] | None = None
    """Uploaded parts, oldest first. Only GET returns this list. The server removes the parts soon
    after the upload ends."""
