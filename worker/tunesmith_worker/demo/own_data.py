"""The user's own data file, cut into training rows and the held-out end of it, as JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.records import read_records

HELD_OUT_SHARE = 0.05
HELD_OUT_MIN, HELD_OUT_MAX = 8, 64
"""Few rows say little about a loss; more than 64 only cost time."""


def num_held_out(rows: int) -> int:
    """How many of `rows` are kept from training. Raises DataError when there are too few rows."""
    if rows < 2 * HELD_OUT_MIN:
        raise DataError(
            f"the data file has {rows} rows: at least {2 * HELD_OUT_MIN} are needed, as "
            f"{HELD_OUT_MIN} are kept for validation."
        )
    return min(HELD_OUT_MAX, max(HELD_OUT_MIN, round(rows * HELD_OUT_SHARE)))


def split_own_data(source: Path, train: Path, valid: Path) -> tuple[int, int]:
    """Write both files; gives their numbers of rows. Bad rows are the service's to name."""
    rows = []
    for record in read_records(source, source.name):
        if record.problem is not None:
            raise DataError(f"{source.name}, row {record.number}: {record.problem}")
        rows.append(record.value)
    kept = len(rows) - num_held_out(len(rows))
    write_jsonl(train, rows[:kept])
    write_jsonl(valid, rows[kept:])
    return kept, len(rows) - kept


def write_jsonl(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    with file.open("w", encoding="utf-8") as output:
        for row in rows:
            # Parquet has dates and the like, which JSON has only as text.
            output.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
