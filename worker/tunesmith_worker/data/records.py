"""A data file as numbered records: JSONL, JSON array, Parquet, CSV. Format by name, then content.

Knows nothing of row formats. JSONL and Parquet are streamed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = Any  # Any: whatever JSON, Parquet or CSV holds

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    number: int
    """From 1: the line in JSONL, else the record."""
    value: Value = None
    problem: str | None = None
    """Why it could not be read; `value` is None then."""


def read_records(path: Path, filename: str) -> Iterator[Record]:
    """All records of `path`. `filename` is the name the user gave it, for its extension."""
    kind = _kind(path, Path(filename).suffix.lower())
    if kind == "parquet":
        yield from _parquet(path)
    elif kind in ("csv", "tsv"):
        yield from _csv(path, delimiter="," if kind == "csv" else "\t")
    elif kind == "array":
        yield from _json_array(path)
    else:
        yield from _jsonl(path)


def _kind(path: Path, extension: str) -> str:
    if extension == ".parquet":
        return "parquet"
    if extension in (".csv", ".tsv"):
        return extension[1:]
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(_BOM).lstrip()
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(b"["):  # one may call an array .jsonl, and lines .json
        return "array"
    if start.startswith(b"{") or extension in (".json", ".jsonl", ".ndjson") or not start:
        return "jsonl"
    return "csv" if b"," in start.split(b"\n")[0] else "jsonl"


def _jsonl(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(_BOM) if number == 1 else raw
            if not line.strip():
                continue
            try:
                yield Record(number, json.loads(line.decode("utf-8")))
            except UnicodeDecodeError as error:
                yield Record(number, problem=f"not valid UTF-8 at byte {error.start + 1}")
            except json.JSONDecodeError as error:
                yield Record(number, problem=f"not valid JSON at column {error.colno}: {error.msg}")
            except RecursionError:
                yield Record(number, problem="not readable JSON: nested too deeply")


def _json_array(path: Path) -> Iterator[Record]:
    try:
        values = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        yield Record(1, problem=f"not valid UTF-8 at byte {error.start + 1} of the file")
        return
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        yield Record(1, problem=f"the file is not a valid JSON array: {error.msg} at {where}")
        return
    except RecursionError:
        yield Record(1, problem="not readable JSON: nested too deeply")
        return
    for number, value in enumerate(values, start=1):
        yield Record(number, value)


def _parquet(path: Path) -> Iterator[Record]:
    # Imported here: only Parquet files need it, and it takes 0.1 s.
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                for value in batch.to_pylist():
                    number += 1
                    yield Record(number, value)
    except (pa.ArrowException, OSError) as error:
        yield Record(number + 1, problem=f"not readable as Parquet: {error}")


def _csv(path: Path, *, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # the default refuses texts above 131,072 characters
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(rows, None)
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
