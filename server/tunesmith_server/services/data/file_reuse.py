"""Search for an uploaded file with the same content, so that the SDK need not upload the content
again."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import FileObject, FilePurpose, MethodName
from tunesmith_server.models import FileRow

from . import files

_MOST = 100
"""Maximum number of files with the same content that one search examines."""


def find(
    session: Session, *, filename: str, purpose: FilePurpose, sha256: str
) -> FileObject | None:
    """Return the newest file with this content that a job can use, or None.

    The suffix of the file name must be the same, because the suffix selects the parser (JSONL, CSV,
    ...)."""
    rows = session.scalars(
        select(FileRow)
        .where(FileRow.sha256 == sha256, FileRow.purpose == purpose)
        .order_by(FileRow.created_at.desc())
        .limit(_MOST)
    )
    suffix = Path(files.plain_name(filename)).suffix.lower()
    for file in map(files.to_wire, rows):
        if Path(file.filename).suffix.lower() == suffix and _is_reusable(file):
            return file
    return None


def _is_reusable(file: FileObject) -> bool:
    """Return True if the file has no expiry, has not failed validation, and was validated for every
    method. Files that an older release validated may lack the newer methods."""
    if file.status == "error" or file.expires_at is not None:
        return False
    found = file.validation
    return found is None or {*found.usable_for, *found.refused} >= {*get_args(MethodName)}
