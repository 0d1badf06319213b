"""Uploads: a large file that arrives in parts, as OpenAI's `uploads` resource has it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .base import Request, Response, Text, with_example
from .files import FileObject, FilePurpose

MAX_UPLOAD_BYTES = 8 * 1024**3
"""Largest file that can be uploaded in parts."""
MAX_PART_BYTES = 64 * 1024**2
"""Largest part."""
MAX_UPLOAD_PARTS = 10_000
"""Most parts of one upload."""
UPLOAD_SECONDS = 3600
"""How long after its creation an upload takes parts and can be completed."""

PartId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
Md5 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")]


class UploadStatus(StrEnum):
    """Where an upload stands (OpenAI's closed set)."""

    PENDING = "pending"
    """Takes parts."""
    COMPLETED = "completed"
    """Has become a file."""
    CANCELLED = "cancelled"
    """Given up by its maker."""
    EXPIRED = "expired"
    """Was not completed in time."""


class ExpiresAfter(Request):
    """When the file is to be deleted by itself."""

    anchor: Literal["created_at"]
    """From when on the time counts: the creation of the file."""
    seconds: int = Field(ge=3600, le=2_592_000)
    """How long it stays, seconds: an hour to 30 days."""


class UploadCreate(Request):
    """What is announced before the first part is sent."""

    model_config = with_example(
        {
            "bytes": 104_857_600,
            "filename": "rows.jsonl",
            "mime_type": "application/jsonl",
            "purpose": "fine-tune",
        }
    )

    bytes: int = Field(ge=1, le=MAX_UPLOAD_BYTES)
    """Size of the whole file."""
    filename: Annotated[Text, StringConstraints(min_length=1, max_length=1024)]
    """Name of the file; folders in it are dropped."""
    mime_type: Annotated[Text, StringConstraints(max_length=255)]
    """Its media type; kept, and not judged."""
    purpose: FilePurpose
    """What the file is for."""
    expires_after: ExpiresAfter | None = None
    """When the file is to be deleted by itself; by default never."""


class UploadComplete(Request):
    """What makes a file of the parts."""

    part_ids: list[PartId] = Field(min_length=1, max_length=MAX_UPLOAD_PARTS)
    """The parts in the order of the file. One may stand in it more than once."""
    md5: Md5 | None = None
    """Of the whole file, hexadecimal; a difference refuses the request."""


class UploadPart(Response):
    """A piece that has arrived."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    """Unix seconds."""
    upload_id: str
    """The upload it belongs to."""
    bytes: int
    """Its size."""
    sha256: str
    """Of the piece, hexadecimal."""


class Upload(Response):
    """A file on its way."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    """Size of the whole file, as announced."""
    created_at: int
    """Unix seconds."""
    expires_at: int
    """Unix seconds; later it takes no parts and cannot be completed."""
    filename: str
    """As the file will be called."""
    purpose: str
    """What the file is for."""
    status: UploadStatus
    """Where it stands."""
    file: FileObject | None = None
    """What became of it, once `completed`; null when that file was deleted since."""
    parts: list[UploadPart] | None = None
    """Only from GET: what has arrived, oldest first; gone soon after the upload is over."""
