"""Chunks of a data file: other processes receive a chunk as bytes and parse its rows. The content
of a chunk depends only on the file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tunesmith_schema import RowFormat

from .formats import BadRow, Row, detect
from .records import (
    TOO_DEEP,
    Record,
    Unreadable,
    file_kind,
    parse_lines,
    read_batches,
    read_records,
    unsupported_kind,
)
from .rows import RowChecker, good_rows

MAX_ROWS = 500
MAX_BYTES = 2**20
"""Maximum size of a chunk; a single row may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    first: int
    """Number of the chunk's first record; the first record of the file is number 1."""
    content: bytes = b""
    kind: Literal["lines", "table"] = "lines"
    """Form of the content: `lines` for JSON lines, `table` for an Arrow stream."""
    share: float = 1.0
    """Approximate share of the file that has been read at the end of this chunk."""
    problem: str | None = None
    """Reason why the file cannot be read from record `first` on. A chunk with a `problem` has no
    content."""
    format: RowFormat | None = None
    """Format of the file; None if the first row has no known format."""


def read_chunks(path: Path) -> Iterator[Chunk]:
    """Yield the chunks of the file in order.

    If a part of the file is unreadable, the last chunk has a `problem`.
    """
    format, detected = None, False
    for chunk in _raw_chunks(path):
        if not detected and (record := next(_records(chunk), None)) is not None:
            format, detected = _format(record), True
        yield replace(chunk, format=format)


def chunk_rows(chunk: Chunk, name: str) -> list[Row]:
    """Return the rows of a chunk.

    `name`: file name for messages. Raises DataError at the first bad row.
    """
    return list(good_rows(RowChecker(chunk.format), _records(chunk), name))


def _raw_chunks(path: Path) -> Iterator[Chunk]:
    kind = file_kind(path, path.suffix.lower())
    if unsupported_kind(path) is None and kind == "parquet":
        return _from_parquet(path)
    if unsupported_kind(path) is None and kind == "jsonl":
        return _from_lines(path)
    return _from_records(path)


def _format(record: Record) -> RowFormat | None:
    try:
        return detect(record.value) if record.problem is None else None
    except BadRow:
        return None


def _records(chunk: Chunk) -> Iterator[Record]:
    if chunk.problem is not None:
        return iter([Record(chunk.first, problem=chunk.problem)])
    if chunk.kind == "lines":
        return parse_lines(io.BytesIO(chunk.content), first=chunk.first)
    import pyarrow as pa  # only Parquet files need pyarrow

    values = pa.ipc.open_stream(chunk.content).read_all().to_pylist()
    return (Record(number, value) for number, value in enumerate(values, start=chunk.first))


def _from_lines(path: Path) -> Iterator[Chunk]:
    size, read, first = max(1, path.stat().st_size), 0, 1
    lines: list[bytes] = []
    length = 0
    with path.open("rb") as file:
        for line in file:
            lines.append(line)
            length += len(line)
            if len(lines) == MAX_ROWS or length >= MAX_BYTES:
                read += length
                yield Chunk(first=first, content=b"".join(lines), share=read / size)
                first, lines, length = first + len(lines), [], 0
    if lines:
        yield Chunk(first=first, content=b"".join(lines))


def _from_records(path: Path) -> Iterator[Chunk]:
    """Yield chunks of CSV files and JSON arrays, converted to JSON lines with the same values."""
    size, read, first, length = max(1, path.stat().st_size), 0, 1, 0
    lines: list[bytes] = []
    problem = None
    for record in read_records(path, path.name):
        problem = record.problem
        if problem is None:
            try:
                lines.append(json.dumps(record.value).encode() + b"\n")
            except RecursionError:
                problem = TOO_DEEP
        if problem is not None:
            break
        length += len(lines[-1])
        if len(lines) == MAX_ROWS or length >= MAX_BYTES:
            read += length
            yield Chunk(first=first, content=b"".join(lines), share=min(1.0, read / size))
            first, lines, length = first + len(lines), [], 0
    if lines:
        yield Chunk(first=first, content=b"".join(lines))
    if problem is not None:
        yield Chunk(first=first + len(lines), problem=problem)


def _from_parquet(path: Path) -> Iterator[Chunk]:
    first = 1
    try:
        for batch, share in read_batches(path):
            rows = max(1, min(MAX_ROWS, batch.num_rows * MAX_BYTES // max(1, batch.nbytes)))
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                yield Chunk(first=first, content=arrow_stream(part), kind="table", share=share)
                first += part.num_rows
    except Unreadable as error:
        yield Chunk(first=first, problem=str(error))


def arrow_stream(batch: Any) -> bytes:  # Any: pyarrow is untyped
    """Return a record batch as an Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
