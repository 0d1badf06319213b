"""Micro-batches of one step: the same rows, shared out evenly."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tunesmith_worker.run import main
from tunesmith_worker.trainers.micro_batches import balance

from .conftest import MakeRun
from .runs import losses

COLLATE = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
Batch = dict[str, Any]  # Any: tensors and numbers


def batches_of(*lengths: list[int], seed: int = 0) -> list[Batch]:
    draw = random.Random(seed)
    return [
        COLLATE(
            [
                {
                    "input_ids": [draw.randrange(3, 99) for _ in range(length)],
                    "labels": [draw.choice([-100, 5, 7]) for _ in range(length)],
                }
                for length in batch
            ]
        )
        for batch in lengths
    ]


def rows_of(batches: list[Batch]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    rows = []
    for batch in batches:
        bounds = batch["cu_seq_lens_q"].tolist()
        for start, stop in itertools.pairwise(bounds):
            ids, labels = (batch[name][0, start:stop].tolist() for name in ("input_ids", "labels"))
            rows.append((tuple(ids), tuple(labels)))
    return sorted(rows)


def test_the_largest_micro_batch_gets_smaller_and_no_row_is_lost() -> None:
    given = batches_of([200, 200, 200, 3], [60, 60], [5], [3, 3, 3])
    shared = balance(given)
    sizes = [batch["input_ids"].shape[1] for batch in shared]
    assert len(shared) == 4
    assert max(sizes) == 200
    assert sum(sizes) == sum(batch["input_ids"].shape[1] for batch in given)
    assert rows_of(shared) == rows_of(given)


def test_a_shared_out_batch_is_what_trl_would_have_collated() -> None:
    given = batches_of([9, 8, 40], [2, 1])
    for batch in balance(given):
        bounds = batch["cu_seq_lens_q"].tolist()
        expected = COLLATE(
            [
                {
                    "input_ids": batch["input_ids"][0, start:stop].tolist(),
                    "labels": batch["labels"][0, start:stop].tolist(),
                }
                for start, stop in itertools.pairwise(bounds)
            ]
        )
        assert batch.keys() == expected.keys()
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(batch[name], value), name
                assert batch[name].dtype == value.dtype, name
            else:
                assert batch[name] == value, name


@pytest.mark.parametrize("lengths", [([7, 3],), ([5, 5], [5, 5])], ids=["one", "even"])
def test_nothing_moves_where_nothing_is_gained(lengths: tuple[list[int], ...]) -> None:
    given = batches_of(*lengths)
    assert all(a is b for a, b in zip(balance(given), given, strict=True))


def test_padded_batches_are_left_alone() -> None:
    padded = DataCollatorForLanguageModeling(pad_token_id=0)
    given = [padded([{"input_ids": [1] * n} for n in (3, 9)]) for _ in range(2)]
    assert all(a is b for a, b in zip(balance(given), given, strict=True))


def test_a_step_learns_the_same_however_its_rows_are_shared_out(make_run: MakeRun) -> None:
    rows = [{"prompt": "Go on", "completion": " five" * n} for n in (40, 1, 1, 40, 2, 40, 1, 3)]
    common = {"max_steps": 4, "learning_rate": 1e-2}
    alone = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    split = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    whole = make_run(rows, recipe={**common, **alone}, name="whole")
    parts = make_run(rows, recipe={**common, **split}, name="parts")
    assert main(whole) == main(parts) == 0
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)
    assert losses(whole)[-1] < losses(whole)[0]
