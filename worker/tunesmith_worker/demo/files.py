"""Output directory and data files of the demo."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.records import read_records
from tunesmith_worker.trainer.data.rows import RowChecker, good_rows

MARKER = ".tunesmith-demo"
"""File that marks a directory as the output of a demo."""
_FOLDERS = ("service", "architecture", "models", "data", "adapter", "grpo-adapter")
_FILES = ("loss.png", "reward.png", "summary.md", "summary.json", "service.log")
HELD_OUT_SHARE = 0.05
HELD_OUT_MIN, HELD_OUT_MAX = 8, 64
"""Fewer rows give no reliable loss; more rows only cost time."""


class OutputRefused(ValueError):
    """Error of an output directory that the demo must not write to."""


def prepare_output(folder: Path) -> Path:
    """Create the output directory. Removes the files of an earlier demo and keeps other files."""
    folder = folder.expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise OutputRefused(f"{folder} is a file: name a directory with --output")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise OutputRefused(
            f"{folder} contains files that no demo made: name another directory with --output"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("made by `tunesmith demo`, which may replace it\n")
    for path in (folder / name for name in (*_FOLDERS, *_FILES)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return folder


def num_held_out(rows: int) -> int:
    """Return the number of validation rows. Raises DataError if the file has too few rows."""
    if rows < 2 * HELD_OUT_MIN:
        raise DataError(
            f"the data file has {rows} rows, but at least {2 * HELD_OUT_MIN} are needed, because "
            f"{HELD_OUT_MIN} are held out for validation."
        )
    return min(HELD_OUT_MAX, max(HELD_OUT_MIN, round(rows * HELD_OUT_SHARE)))


def split_own_data(source: Path, train: Path, valid: Path) -> tuple[int, int]:
    """Write the user's rows as JSONL, the last rows into `valid`. Returns both numbers of rows.

    Raises DataError at a bad row, with the name of the user's file.
    """
    records = list(read_records(source, source.name))
    list(good_rows(RowChecker(), records, source.name))
    rows = [record.value for record in records]
    num_train = len(rows) - num_held_out(len(rows))
    write_jsonl(train, rows[:num_train])
    write_jsonl(valid, rows[num_train:])
    return num_train, len(rows) - num_train


def write_jsonl(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    with file.open("w", encoding="utf-8") as output:
        for row in rows:
            # default=str: Parquet has dates and other types that JSON lacks.
            output.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
