"""Rows kept out of training: whole rows, chosen by the seed."""

from __future__ import annotations

from typing import Any

import datasets
import pyarrow as pa
import pytest

from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.trainer.data.examples import Counts
from tunesmith_worker.trainer.data.held_out import held_out_rows
from tunesmith_worker.trainer.data.prepare import Prepared
from tunesmith_worker.trainer.data.tokens import TokenizedRows


def prepared(rows: list[int], held_out: frozenset[int]) -> Prepared:
    """Make a file whose example number n, of row `rows[n]`, has the single token n."""
    examples = [[number] for number in range(len(rows))]
    dataset = datasets.Dataset(pa.table({"input_ids": examples, "labels": examples}))
    training = TokenizedRows(
        dataset=dataset,
        counts=Counts(kept=len(set(rows))),
        first=(0,),
        rows=pa.chunked_array([rows]),
    )
    lookup: Any = None
    return Prepared(training=training, validation=None, row_numbers=lookup, held_out=held_out)


def test_all_examples_of_a_row_are_kept_out_together() -> None:
    data = prepared([1, 1, 2, 3, 3, 3, 5], frozenset({3, 5}))
    train, valid = data.unpacked_sets()
    assert [ids for [ids] in train["input_ids"]] == [0, 1, 2]
    assert [ids for [ids] in valid["input_ids"]] == [3, 4, 5, 6]
    assert data.trained_rows == 2
    evaluated, numbers = data.evaluation_rows()
    assert evaluated["input_ids"] == valid["input_ids"]
    assert numbers.to_pylist() == [3, 3, 3, 5]


def test_without_a_split_nothing_is_copied() -> None:
    data = prepared([1, 2], frozenset())
    assert data.unpacked_sets() == (data.training.dataset, None)
    assert data.evaluation_rows()[0] is data.training.dataset


def test_the_seed_determines_the_rows_and_examples_do_not_count() -> None:
    rows = [number for number in range(1, 101) for _ in range(number % 3 + 1)]
    first, again, other = (held_out_rows(rows, 0.1, seed, "t.jsonl") for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len(other) == 10
    assert first <= set(rows)


def test_a_row_to_train_on_is_left() -> None:
    assert len(held_out_rows([1, 2], 0.01, 0, "t.jsonl")) == 1
    with pytest.raises(RunError, match=r"leaves none of the 1 rows of t\.jsonl"):
        held_out_rows([4, 4], 0.5, 0, "t.jsonl")
