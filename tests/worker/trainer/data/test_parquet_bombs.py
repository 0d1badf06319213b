"""Parquet files of a few kilobytes that expand to gigabytes exhaust nobody's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.supervisor.child.check_upload import check_upload
from tunesmith_worker.trainer.data.rows import read_rows
from tunesmith_worker.trainer.data.validate import validate_file

MEGABYTE = 2**20
MEASURED = """
import re, sys
from pathlib import Path
from tunesmith_worker.trainer.data.validate import validate_file
found = validate_file(Path(sys.argv[1]), "bomb.parquet")
assert not found.ok
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def one_huge_value(path: Path) -> None:
    """A text of 20 MB in the dictionary, and a thousand rows that name it: 20 GB."""
    rows = pa.array(np.zeros(1000, dtype="int32"))
    column = pa.DictionaryArray.from_arrays(rows, pa.array(["x" * 20 * MEGABYTE]))
    pq.write_table(pa.table({"text": column}), path, compression="zstd")


def countless_rows(path: Path) -> None:
    """Ten million rows of one word, which run-length coding keeps in a few bytes."""
    rows = pa.array(np.zeros(10_000_000, dtype="int8"))
    column = pa.DictionaryArray.from_arrays(rows, pa.array(["hi"]))
    pq.write_table(pa.table({"text": column}), path, row_group_size=10_000_000, compression="zstd")


def countless_nothings(path: Path) -> None:
    """One row with a list of ten million nulls."""
    ends = pa.array(np.array([0, 10_000_000], dtype="int32"))
    column = pa.ListArray.from_arrays(ends, pa.nulls(10_000_000, pa.string()))
    pq.write_table(pa.table({"messages": column}), path, compression="zstd")


def zeros(path: Path) -> None:
    """Three texts of 100 MB, compressed ten thousand times."""
    table = pa.table({"text": ["x" * 100 * MEGABYTE] * 3})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


@pytest.mark.parametrize("make", [one_huge_value, countless_rows, countless_nothings, zeros])
def test_a_parquet_bomb_is_named_and_costs_little_memory(tmp_path: Path, make: object) -> None:
    path = tmp_path / "bomb.parquet"
    assert callable(make)
    make(path)
    assert path.stat().st_size < MEGABYTE
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 800, "megabytes"
    found = check_upload(path, path.name).result
    assert "expands to at least" in found.problems[0].message
    assert "send it as JSONL" in found.problems[0].message
    with pytest.raises(DataError, match="expands to at least"):  # a run by hand
        read_rows(path)


def test_an_honest_file_of_equal_rows_is_no_bomb(tmp_path: Path) -> None:
    path = tmp_path / "same.parquet"
    pq.write_table(pa.table({"text": ["the same text"] * 50_000}), path)
    found = validate_file(path, path.name)
    assert (found.ok, found.rows) == (True, 50_000)
