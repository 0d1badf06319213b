"""A data file in chunks that another process can be sent, as bytes; and a chunk as rows.

What a chunk holds depends on the file alone. Knows no tokenizer.
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
    kind_of,
    mistake_in,
    parse_lines,
    read_batches,
    read_records,
)
from .rows import Checker, good_rows

MOST_ROWS = 500
MOST_BYTES = 2**20
"""One row may have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    first: int
    """Number of its first record."""
    content: bytes = b""
    kind: Literal["lines", "table"] = "lines"
    """JSON lines, or an Arrow stream."""
    share: float = 1.0
    """Of the file that is read when the chunk ends, about."""
    problem: str | None = None
    """Why the file cannot be read on at `first`; the chunk has no content then."""
    format: RowFormat | None = None
    """That of the file; None where its first row has none."""


def read_chunks(path: Path) -> Iterator[Chunk]:
    """All of the file, in order; what cannot be read is a last chunk with a problem."""
    format, begun = None, False
    for chunk in _raw_chunks(path):
        if not begun and (record := next(_records(chunk), None)) is not None:
            format, begun = _format(record), True
        yield replace(chunk, format=format)


def chunk_rows(chunk: Chunk, name: str) -> list[Row]:
    """`name` is the file's. Raises DataError at the first bad row."""
    return list(good_rows(Checker(chunk.format), _records(chunk), name))


def _raw_chunks(path: Path) -> Iterator[Chunk]:
    kind = kind_of(path, path.suffix.lower())
    if mistake_in(path) is None and kind == "parquet":
        return _from_parquet(path)
    if mistake_in(path) is None and kind == "jsonl":
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
    import pyarrow as pa  # only Parquet files need it

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
            if len(lines) == MOST_ROWS or length >= MOST_BYTES:
                read += length
                yield Chunk(first=first, content=b"".join(lines), share=read / size)
                first, lines, length = first + len(lines), [], 0
    if lines:
        yield Chunk(first=first, content=b"".join(lines))


def _from_records(path: Path) -> Iterator[Chunk]:
    """CSV and JSON arrays, whose values JSON lines hold exactly."""
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
        if len(lines) == MOST_ROWS or length >= MOST_BYTES:
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
            rows = max(1, min(MOST_ROWS, batch.num_rows * MOST_BYTES // max(1, batch.nbytes)))
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                yield Chunk(first=first, content=_stream(part), kind="table", share=share)
                first += part.num_rows
    except Unreadable as error:
        yield Chunk(first=first, problem=str(error))


def _stream(batch: Any) -> bytes:  # Any: pyarrow is untyped
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
