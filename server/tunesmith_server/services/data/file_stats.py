"""Lengths and duplicates of a data set, and its overlap with another one.

The worker that validates a file computes its statistics and row hashes. A comparison of two files
uses only their row hashes.
"""

from __future__ import annotations

import base64
from array import array

from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, FileOverlap, FileStats, RowPair
from tunesmith_schema.documents import read_document
from tunesmith_schema.file_stats import MAX_COMPARED_ROWS, MAX_EXAMPLES
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.models import FileRow, FileStatsRow

from . import files


def store(session: Session, file_id: str, stats: FileStats, row_hashes: str | None) -> None:
    """Store the statistics of a file. `row_hashes` is base64."""
    packed = None if row_hashes is None else base64.b64decode(row_hashes)
    session.merge(
        FileStatsRow(file_id=file_id, stats=stats.model_dump(mode="json"), row_hashes=packed)
    )


def retrieve(session: Session, file_id: str, *, param: str | None = None) -> FileStats:
    """Return the statistics of a file. Raises NotFound if the file has no statistics."""
    return read_document(FileStats, _row(session, file_id, param=param).stats, "stats")


def overlap(session: Session, file_id: str, other_id: str) -> FileOverlap:
    """Return the rows of a file that are also in another file."""
    row, other = _row(session, file_id), _row(session, other_id, param="with")
    own = _hashes(session, row, "file_id")
    first = dict[int, int]()
    for number, value in enumerate(_hashes(session, other, "with"), start=1):
        first.setdefault(value, number)
    first.pop(0, None)  # rows that cannot be read
    found = [(number, first[value]) for number, value in enumerate(own, start=1) if value in first]
    readable = len(own) - own.count(0)
    return FileOverlap(
        file_id=file_id,
        other_id=other_id,
        rows=len(found),
        share=len(found) / readable if readable else 0.0,
        pairs=[RowPair(row=number, other=same) for number, same in found[:MAX_EXAMPLES]],
    )


def _row(session: Session, file_id: str, *, param: str | None = None) -> FileStatsRow:
    file = files.retrieve(session, file_id, param=param)
    row = session.get(FileStatsRow, file.id)
    if row is None:
        raise NotFound(
            ErrorCode.NO_STATS,
            f"file {file_id!r} has no statistics of its rows{_reason(file)}",
            param=param,
            hint="wait until a worker has read the file"
            if file.status == "uploaded"
            else "delete the file and upload it again",
        )
    return row


def _reason(file: FileRow) -> str:
    if file.status == "uploaded":
        return ": it has not been read yet"
    if file.purpose != "fine-tune":
        return f": its purpose is {file.purpose!r}, not 'fine-tune'"
    return ": an older release validated the file, or the file is not readable"


def _hashes(session: Session, row: FileStatsRow, param: str) -> array[int]:
    if row.row_hashes is None:
        raise BadRequest(
            ErrorCode.NOT_SUPPORTED,
            f"file {row.file_id!r} has more than {MAX_COMPARED_ROWS:,} rows; larger files are not "
            "compared",
            param=param,
            hint="split the file and compare the parts",
        )
    hashes = array("Q")
    hashes.frombytes(row.row_hashes)
    return hashes
