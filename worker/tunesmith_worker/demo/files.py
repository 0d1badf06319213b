"""Output directory of the demo, and the user's own data file."""

from __future__ import annotations

import shutil
from pathlib import Path

from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.records import read_records
from tunesmith_worker.trainer.data.rows import RowChecker, good_rows

from .world import DataSet

MARKER = ".tunesmith-demo"
"""File that marks a directory as the output of a demo."""
_FOLDERS = ("service", "architecture", "models", "data", "adapter", "grpo-adapter")
_FILES = ("loss.png", "reward.png", "summary.md", "summary.json", "service.log")
HELD_OUT_SHARE = 0.05
HELD_OUT_MIN, HELD_OUT_MAX = 8, 64
"""Minimum and maximum number of held-out rows. Fewer rows give no reliable loss; more rows cost
time."""


class DemoError(Exception):
    """Error of the demo with a message for the user."""


def prepare_output(folder: Path) -> Path:
    """Create the output directory. Removes the files of an earlier demo and keeps other files."""
    folder = folder.expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise DemoError(f"{folder} is a file: name a directory with --output")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise DemoError(
            f"{folder} contains files that no demo made: name another directory with --output"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text(
        "This folder was made by `tunesmith demo`, which may replace it.\n"
    )
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


def split_own_data(source: Path) -> DataSet:
    """Return the user's rows; the last rows are for validation. Raises DataError at a bad row."""
    records = list(read_records(source, source.name))
    list(good_rows(RowChecker(), records, source.name))
    rows = [record.value for record in records]
    num_train = len(rows) - num_held_out(len(rows))
    return DataSet(train=rows[:num_train], valid=rows[num_train:])
