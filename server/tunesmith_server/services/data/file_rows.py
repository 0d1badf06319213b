"""Pages of rows of a stored JSONL file.

A page starts at a byte offset, so reading a page takes the same time anywhere in the file. A page
may end before it has the requested number of rows, because it parses at most MAX_READ_BYTES. The
next page starts after the last byte read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tunesmith_schema import DataRow, ErrorCode
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.storage import Storage
from tunesmith_server.core.stored_file import open_stored
from tunesmith_server.models import FileRow

from ..pages import PageBuilder, json_of
from ..paging import unknown_cursor

MAX_ROW_BYTES = 1024 * 1024
"""Maximum size of a row that is shown and searched completely."""
MAX_READ_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes that one page parses; it must be more than MAX_ROW_BYTES."""
MAX_SKIP_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes that one page skips to reach line `offset`."""
MAX_TEXT = 2000
"""Maximum number of characters that are shown of a row with a problem."""
_BOM = b"\xef\xbb\xbf"
_OTHER_FORMATS = {".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet"}


@dataclass(frozen=True, kw_only=True)
class Position:
    """Place in a file at which a page starts: a byte offset, and the number of complete lines
    before it.

    The offset may be inside a long line whose start is on an earlier page.
    """

    lines: int = 0
    byte: int = 0

    def __str__(self) -> str:
        return f"{self.lines}-{self.byte}"


def read_page(
    storage: Storage, file: FileRow, *, after: str | None, offset: int, limit: int, text: str | None
) -> PageBuilder:
    """Return the rows that come after the first `offset` lines and after the position `after`.

    With `text`, return only rows that have this text in a JSON key or a JSON string, ignoring
    upper and lower case. Raises FileNotFoundError if the content is lost.
    """
    start = _parse(after, file) if after else Position()
    if start.byte == 0:
        _check_format(storage, file)
    start = _skip(storage, file, start, offset)
    page = PageBuilder()
    end = start
    if start.lines >= offset:
        for row, behind in _rows(storage, file, start):
            matches = row is not None and (text is None or _has_text(row, text.lower()))
            if row is not None and matches and not page.add(row.id, json_of(row)):
                break
            end = behind
            if len(page) == limit:
                break
    page.cursor = str(end)
    page.has_more = end.byte < file.bytes
    return page


def _parse(after: str, file: FileRow) -> Position:
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", after)
    if match is None or not int(match[1]) <= int(match[2]) <= file.bytes:
        raise unknown_cursor(after, "row")
    return Position(lines=int(match[1]), byte=int(match[2]))


def _check_format(storage: Storage, file: FileRow) -> None:
    """Raise BadRequest if the file has no lines of JSON."""
    name = _OTHER_FORMATS.get(Path(file.filename).suffix.lower())
    if name is None:
        with open_stored(storage, file.sha256, 0, min(file.bytes, 4096)) as content:
            start = content.read().removeprefix(_BOM).lstrip()
        name = "Parquet" if start[:4] == b"PAR1" else "JSON array" if start[:1] == b"[" else None
    if name is not None:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"file {file.id!r} ({file.filename}) is a {name} file; only rows of JSONL files can "
            "be listed",
            hint=f"GET /v1/files/{file.id}/content returns the whole file",
        )


def _skip(storage: Storage, file: FileRow, start: Position, offset: int) -> Position:
    """Return the position after the first `offset` lines.

    If this position is more than MAX_SKIP_BYTES after `start` or beyond the end of the file, return
    an earlier position.
    """
    if start.lines >= offset:
        return start
    lines, byte = start.lines, start.byte
    end = min(file.bytes, byte + MAX_SKIP_BYTES)
    with open_stored(storage, file.sha256, byte, end) as content:
        while piece := content.read1():
            count = piece.count(b"\n")
            if lines + count >= offset:
                at = 0
                for _ in range(offset - lines):
                    at = piece.index(b"\n", at) + 1
                return Position(lines=offset, byte=byte + at)
            lines, byte = lines + count, byte + len(piece)
    return Position(lines=lines, byte=byte)


def _rows(
    storage: Storage, file: FileRow, start: Position
) -> Iterator[tuple[DataRow | None, Position]]:
    """Yield each row after the position `start`, with the position after the row.

    Yield None for a blank line and for the rest of a line that is too long.
    """
    lines, byte = start.lines, start.byte
    end = min(file.bytes, byte + MAX_READ_BYTES)
    with open_stored(storage, file.sha256, max(byte - 1, 0), end) as content:
        is_inside = byte > 0 and content.read(1) != b"\n"
        while line := content.readline(MAX_ROW_BYTES):
            is_start, is_inside = not is_inside, not line.endswith(b"\n")
            is_whole = not is_inside or byte + len(line) == file.bytes
            if is_start and not is_whole and len(line) < MAX_ROW_BYTES:
                return  # the next page has the whole line
            byte += len(line)
            number = lines + 1
            lines += not is_inside
            behind = Position(lines=lines, byte=byte)
            row = _row(number, behind, line, is_whole) if is_start and line.strip() else None
            yield row, behind


def _row(number: int, behind: Position, line: bytes, is_whole: bool) -> DataRow:
    if number == 1:
        line = line.removeprefix(_BOM)
    problem = f"longer than {MAX_ROW_BYTES:,} bytes"
    if is_whole:
        try:
            return DataRow(id=str(behind), line=number, data=from_json(line))
        except ValueError as error:
            problem = f"not JSON: {error}"
    shown = line.decode(errors="replace").rstrip("\r\n")
    return DataRow(id=str(behind), line=number, text=shown[:MAX_TEXT], problem=problem)


def _has_text(row: DataRow, text: str) -> bool:
    return any(text in part.lower() for part in _strings(row.text or row.data))


def _strings(value: Any) -> Iterator[str]:  # Any: JSON
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, str):
        yield value
