"""Numbered records of a data file: JSONL, JSON array, Parquet, CSV or TSV.

The extension of the file name determines the kind of the file. If the extension is unknown, the
content determines the kind. Files of all kinds except a JSON array are streamed. A small Parquet
file can expand to gigabytes, so the size of expanded data is limited.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .formats import COLUMN_SETS, COLUMNS, json_excerpt

Value = Any  # Any: whatever JSON, Parquet or CSV holds

_BOM = b"\xef\xbb\xbf"
_NOT_TEXT = {
    b"\xff\xfe": "is UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "is UTF-16 text: save it as UTF-8",
    b"\x1f\x8b": "is compressed (gzip): unpack it first",
    b"PK\x03\x04": "is a zip archive (or a spreadsheet): unpack it, or export it as CSV",
    b"\x28\xb5\x2f\xfd": "is compressed (zstd): unpack it first",
}
"""Message for each file format that users often upload by mistake; the keys are the first bytes."""

TOO_DEEP = "not readable JSON: nested too deeply"
_NUMBER_TOO_LONG = "not readable JSON: a number with more than 4,300 digits"

MAX_EXPANDED = 8 * 2**30
"""Maximum bytes of decoded columns for any file."""
ALWAYS_ALLOWED = 256 * 2**20
"""Files that expand to at most this number of bytes are always allowed. For larger files, RATIO
limits the decoded size."""
RATIO = 100
"""Maximum ratio of decoded to stored bytes in files that expand to more than ALWAYS_ALLOWED.

Only repetitive text exceeds this ratio.
"""
_BYTES_PER_VALUE = 64
"""Assumed bytes of a value in memory. Empty values use memory too, but no bytes in the file."""
_BATCH_BYTES = 256 * 2**20
_BATCH_ROWS = 1000


@dataclass(frozen=True)
class Record:
    number: int
    """Line number in JSONL, record number in other kinds; starts at 1."""
    value: Value = None
    problem: str | None = None
    """Reason why the record could not be read; in this case `value` is None."""


def read_records(path: Path, filename: str) -> Iterator[Record]:
    """Yield all records of `path`. `filename`: name that the user gave the file."""
    kind = file_kind(path, Path(filename).suffix.lower())
    if problem := unsupported_kind(path):
        yield Record(1, problem=f"the file {problem}")
    elif kind == "parquet":
        yield from _parquet(path)
    elif kind in ("csv", "tsv"):
        yield from _csv(path, delimiter="," if kind == "csv" else "\t")
    elif kind == "array":
        yield from _json_array(path)
    else:
        yield from _jsonl(path)


def file_kind(path: Path, extension: str) -> str:
    """Return `parquet`, `csv`, `tsv`, `array` or `jsonl`."""
    if extension == ".parquet":
        return "parquet"
    if extension in (".csv", ".tsv"):
        return extension[1:]
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(_BOM).lstrip()
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(b"["):  # an array, even in a file named .jsonl
        return "array"
    if start.startswith(b"{") or extension in (".json", ".jsonl", ".ndjson") or not start:
        return "jsonl"
    return "csv" if b"," in start.split(b"\n")[0] else "jsonl"


def unsupported_kind(path: Path) -> str | None:
    """Return the problem and the remedy if the file has an unsupported kind, for example an
    archive; else None."""
    with path.open("rb") as file:
        start = file.read(4)
    return next((text for magic, text in _NOT_TEXT.items() if start.startswith(magic)), None)


def _jsonl(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        yield from parse_lines(file, first=1)


def parse_lines(lines: Iterable[bytes], *, first: int) -> Iterator[Record]:
    """Yield the records of JSON lines. `first`: line number of the first record. Skips blank
    lines."""
    for number, raw in enumerate(lines, start=first):
        line = raw.removeprefix(_BOM) if number == 1 else raw
        if not line.strip():
            continue
        try:
            yield Record(number, json.loads(line.rstrip(b"\r\n").decode("utf-8")))
        except UnicodeDecodeError as error:
            yield Record(number, problem=f"not valid UTF-8 at byte {error.start + 1}")
        except json.JSONDecodeError as error:
            yield Record(number, problem=_invalid_line(error))
        except RecursionError:
            yield Record(number, problem=TOO_DEEP)
        except ValueError:  # Python does not convert numbers with thousands of digits
            yield Record(number, problem=_NUMBER_TOO_LONG)


def _invalid_line(error: json.JSONDecodeError) -> str:
    remedy = 'a line must be one complete JSON object, for example {"question": "", "answer": ""}'
    if not error.doc.lstrip().startswith("{"):
        remedy = f"{remedy}; a CSV file needs the extension .csv"
    return f"not valid JSON at column {error.colno}: {json_excerpt(error)}; {remedy}"


def _json_array(path: Path) -> Iterator[Record]:
    try:
        values = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        yield Record(1, problem=f"not valid UTF-8 at byte {error.start + 1} of the file")
        return
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {json_excerpt(error)}"
        remedy = "an array is [{...}, {...}]; or send JSONL, one object per line without brackets"
        yield Record(1, problem=f"the file is not a valid JSON array at {where}; {remedy}")
        return
    except RecursionError:
        yield Record(1, problem=TOO_DEEP)
        return
    except ValueError:
        yield Record(1, problem=_NUMBER_TOO_LONG)
        return
    for number, value in enumerate(values, start=1):
        yield Record(number, value)


def _parquet(path: Path) -> Iterator[Record]:
    number = 0
    try:
        for number, value in enumerate(read_parquet(path), start=1):
            yield Record(number, value)
    except Unreadable as error:
        yield Record(number + 1, problem=str(error))


def _csv(path: Path, *, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # the default limit is 131,072 characters
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(rows, None)
            if header and (missing := _no_header(header)):
                yield Record(1, problem=missing)
                return
            for number, cells in enumerate((row for row in rows if row), start=1):
                if header is None or len(cells) != len(header):
                    expected = len(header or [])
                    text = f"has {len(cells)} columns, the header has {expected}"
                    yield Record(number, problem=text)
                else:
                    yield Record(number, dict(zip(header, cells, strict=True)))
    except UnicodeDecodeError as error:
        yield Record(number + 1, problem=f"not valid UTF-8: {error.reason}")
    except csv.Error as error:
        yield Record(number + 1, problem=f"not valid CSV: {error}")


def _no_header(header: list[str]) -> str | None:
    """Return the problem if the header of a CSV or TSV file repeats a column or has no known
    column."""
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        return f"the first line names the column {twice!r} twice"
    if any(name in columns for name in header for columns in COLUMNS.values()):
        return None
    return (
        f"the first line must name the columns, got "
        f"{', '.join(repr(name[:40]) for name in header[:8])}: needs one of {COLUMN_SETS}"
    )


class Unreadable(ValueError):
    """Error that prevents reading the rest of a file."""


def read_parquet(path: Path) -> Iterator[Any]:  # Any: values of the columns
    """Yield the rows. May raise Unreadable after some rows."""
    for batch, _ in read_batches(path):
        yield from batch.to_pylist()


def read_batches(path: Path) -> Iterator[tuple[Any, float]]:  # Any: pyarrow is untyped
    """Yield pyarrow record batches, each with the share of the file's rows read so far. May raise
    Unreadable after some batches."""
    # pyarrow is imported here: only Parquet files need it, and the import takes 0.1 s.
    import pyarrow as pa
    import pyarrow.parquet as pq

    limit = min(MAX_EXPANDED, max(ALWAYS_ALLOWED, RATIO * path.stat().st_size))
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            largest_group = _check_announced(file.metadata, limit)
            # Every row may repeat a dictionary value that is as large as the row group.
            # Larger row groups therefore allow fewer rows at a time.
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, largest_group)))
            expanded = read = 0
            for batch in file.iter_batches(batch_size=rows, use_threads=False):
                expanded += batch.nbytes
                if expanded > limit:
                    raise _bomb(expanded, limit)
                read += batch.num_rows
                yield batch, read / file.metadata.num_rows
    except MemoryError as error:
        raise Unreadable(f"not readable as Parquet within the memory limit: {error}") from None
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"not readable as Parquet: {error}".strip()) from None


def _check_announced(metadata: Any, limit: int) -> int:  # Any: pyarrow is untyped
    """Return the uncompressed size in bytes of the Parquet file's largest row group. Raises
    Unreadable if the metadata announces more than `limit` bytes for the file."""
    largest = total = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        values = sum(column.num_values for column in columns)
        size = sum(column.total_uncompressed_size for column in columns)
        largest = max(largest, size)
        total += max(size, values * _BYTES_PER_VALUE)
        if total > limit:
            raise _bomb(total, limit)
    return largest


def _bomb(expanded: int, limit: int) -> Unreadable:
    return Unreadable(
        f"the file expands to at least {expanded:,} bytes; the limit for its size is "
        f"{limit:,}. Split the file, or send it as JSONL"
    )
