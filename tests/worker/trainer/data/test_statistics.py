"""Lengths, duplicates and hashes of rows."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tunesmith_worker.trainer.data import statistics
from tunesmith_worker.trainer.data.statistics import RowStatistics
from tunesmith_worker.trainer.data.validate import validate_file


def of_lines(tmp_path: Path, *lines: str) -> RowStatistics:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    found = RowStatistics()
    validate_file(path, path.name, found)
    return found


def text_row(length: int) -> str:
    return json.dumps({"text": "é" * length})


def test_lengths_count_the_characters_of_texts(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "abc"}, {"role": "x", "content": "de"}]}
    found = of_lines(tmp_path, json.dumps(chat), text_row(7), "no JSON").figures()
    assert found.rows == 2
    assert found.lengths is not None
    assert (found.lengths.total, found.lengths.min, found.lengths.max) == (12, 5, 7)


def test_a_histogram_has_round_bins_and_every_row(tmp_path: Path) -> None:
    found = of_lines(tmp_path, *map(text_row, [*range(1, 101), 5000])).figures().lengths
    assert found is not None
    assert (found.median, found.p95, found.max) == (51, 96, 5000)
    assert [item.upto for item in found.histogram[:3]] == [5, 10, 15]
    assert [item.rows for item in found.histogram[:20]] == [5] * 20
    assert found.histogram[-1].upto == 5000
    assert sum(item.rows for item in found.histogram) == 101
    assert len(found.histogram) <= 40


def test_equal_rows_are_duplicates_whatever_their_spelling(tmp_path: Path) -> None:
    found = of_lines(
        tmp_path, '{"text": "a", "n": 1}', "", '{"n":1,"text":"a"}', '{"text": "b"}',
        '{"text": "\\u0061", "n": 1}', '{"text": "b"}', '{"text": "c"}',
    ).figures()  # fmt: skip
    assert found.duplicates == 3
    rows = [(item.row, item.count, item.next) for item in found.repeated]
    assert rows == [(1, 3, 3), (4, 2, 6)]
    alone = of_lines(tmp_path, '{"text": "a"}').figures()
    assert (alone.duplicates, alone.repeated) == (0, [])


def test_hashes_stand_at_the_row_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_lines(tmp_path, '{"text": "a"}', "", "no JSON", '{"text": "a"}')
    packed = found.packed_hashes()
    assert packed is not None
    one, two, three, four = struct.unpack("<4Q", base64.b64decode(packed))
    assert (one, two, three) == (four, 0, 0)
    assert one != 0
    monkeypatch.setattr(statistics, "MAX_COMPARED_ROWS", 3)
    assert found.packed_hashes() is None
    assert of_lines(tmp_path).packed_hashes() == ""
    assert of_lines(tmp_path).figures().lengths is None


@pytest.mark.parametrize("value", [[1] * 3, None, 3.5, {"a": {"b": ["c", None, {"d": "e"}]}}])
def test_rows_of_any_shape_are_counted(tmp_path: Path, value: Any) -> None:
    found = of_lines(tmp_path, json.dumps({"text": "a", "more": value})).figures()
    assert found.rows == 1
