"""A step's rows laid out into micro-batches: the same rows, whatever the layout."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tests.worker.conftest import MakeRun
from tests.worker.runs import losses
from tunesmith_worker.trainer.auto.layout_choice import Layout
from tunesmith_worker.trainer.methods.batches import Batch, collate, split
from tunesmith_worker.trainer.run import main

FREE = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
PADDED = DataCollatorForLanguageModeling(pad_token_id=0)


def examples_of(*lengths: int | list[int], seed: int = 0) -> list[dict[str, Any]]:  # Any: columns
    """Rows of these lengths; a list makes a pack."""
    draw, examples = random.Random(seed), []
    for one in lengths:
        rows = [one] if isinstance(one, int) else one
        labels = [draw.choice([-100, 5, 7]) for _ in range(sum(rows))]
        for start in itertools.accumulate([0, *rows[:-1]]):
            labels[start] = -100
        ids = [draw.randrange(3, 99) for _ in range(sum(rows))]
        example = {"input_ids": ids, "labels": labels}
        examples.append(example if isinstance(one, int) else {**example, "seq_lengths": rows})
    return examples


def laid_out(layout: Layout, *lengths: int | list[int]) -> list[Batch]:
    return split(collate(examples_of(*lengths)), layout, pad_token_id=0)


def rows_of(batches: list[Batch]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ids and labels of every row, sorted."""
    rows = []
    for batch in batches:
        if "attention_mask" in batch:
            places = [(i, 0, int(mask.sum())) for i, mask in enumerate(batch["attention_mask"])]
        else:
            bounds = batch["cu_seq_lens_q"].tolist()
            places = [(0, start, stop) for start, stop in itertools.pairwise(bounds)]
        for row, start, stop in places:
            ids, labels = (
                batch[name][row, start:stop].tolist() for name in ("input_ids", "labels")
            )
            rows.append((tuple(ids), tuple(labels)))
    return sorted(rows)


def assert_equal(batch: Batch, expected: Batch) -> None:
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(batch[name], value), name
            assert batch[name].dtype == value.dtype, name
        else:
            assert batch[name] == value, name


LAYOUTS = [
    Layout(kind="padded", rows=3),
    Layout(kind="padding_free", rows=3),
    Layout(kind="padding_free", rows=100),
    Layout(kind="packed", tokens=16),
    Layout(kind="packed", tokens=1),
]


def count_slots(batches: list[Batch]) -> int:
    """Computed positions, padding included."""
    return sum(batch["input_ids"].numel() for batch in batches)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_trains_the_same_rows(layout: Layout) -> None:
    lengths = [9, 1, 12, 3, 3, 7, 1, 2]
    whole = laid_out(Layout(kind="padding_free", rows=8), *lengths)
    assert rows_of(laid_out(layout, *lengths)) == rows_of(whole)


def test_a_padded_micro_batch_is_what_trl_collates() -> None:
    examples = examples_of(9, 4, 1, 6, 5)
    batches = split(collate(examples), Layout(kind="padded", rows=2), pad_token_id=0)
    for batch, own in zip(batches, (examples[:2], examples[2:4], examples[4:]), strict=True):
        assert_equal(batch, PADDED(own))
    assert count_slots(batches) == 2 * 9 + 2 * 6 + 5


def test_rows_end_to_end_are_what_trl_collates() -> None:
    examples = examples_of(9, 4, 6, 5)
    (batch,) = split(collate(examples), Layout(kind="padding_free", rows=4), pad_token_id=0)
    assert_equal(batch, FREE(examples))


def test_the_first_token_of_each_row_is_no_label() -> None:
    pack = {"input_ids": [3, 4, 5, 6], "labels": [3, 4, 5, 6], "seq_lengths": [1, 3]}
    step = collate([{"input_ids": [7, 8], "labels": [7, 8]}, pack])
    assert step["labels"].tolist() == [[-100, 8, -100, -100, 5, 6]]


def test_packs_are_what_trl_collates() -> None:
    examples = examples_of([3, 5, 1], [9])
    (batch,) = split(collate(examples), Layout(kind="padding_free", rows=2), pad_token_id=0)
    assert_equal(batch, FREE(examples))
    one, other = split(collate(examples), Layout(kind="padding_free", rows=1), pad_token_id=0)
    assert_equal(one, FREE(examples[:1]))
    assert_equal(other, FREE(examples[1:]))


def test_the_largest_micro_batch_gets_smaller() -> None:
    batches = laid_out(Layout(kind="padding_free", rows=4), 200, 200, 200, 3, 60, 60, 5, 3, 3)
    sizes = [batch["input_ids"].shape[1] for batch in batches]
    assert len(sizes) == 3  # in their order: 603, 128, 3
    assert max(sizes) == 260


def test_rows_keep_their_places_where_nothing_is_gained() -> None:
    examples = examples_of(5, 5, 5, 5)
    first, second = split(collate(examples), Layout(kind="padding_free", rows=2), pad_token_id=0)
    assert_equal(first, FREE(examples[:2]))
    assert_equal(second, FREE(examples[2:]))


def test_packed_micro_batches_keep_to_their_tokens() -> None:
    draw = random.Random(1)
    for _ in range(200):
        lengths = [draw.randrange(1, 60) for _ in range(draw.randrange(1, 30))]
        tokens = draw.choice([16, 64, 100, 500])
        sizes = [
            b["input_ids"].shape[1]
            for b in laid_out(Layout(kind="packed", tokens=tokens), *lengths)
        ]
        assert max(sizes) <= max(tokens, *lengths)
        assert sum(sizes) == sum(lengths)
        assert len(sizes) <= 2 * -(-sum(lengths) // max(tokens, *lengths)) + 1


@pytest.mark.parametrize("kind", ["padding_free", "padded", "packed"])
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_narrowed_micro_batches_are_smaller_and_lose_no_row(kind: Any, parts: int) -> None:
    lengths = (40, 1, 30, 30, 12, 9, 8, 33)
    packed = kind == "packed"
    layout = Layout(kind=kind, rows=None if packed else 8, tokens=160 if packed else None)
    whole, narrow = laid_out(layout, *lengths), laid_out(layout.divided(parts), *lengths)
    assert rows_of(narrow) == rows_of(whole)
    most = max(count_slots([batch]) for batch in narrow)
    assert most <= max(40, 1.5 * count_slots(whole) / parts)
    assert layout.divided(1) == layout
    (alone,) = laid_out(layout.divided(1000), 7)
    assert count_slots([alone]) == 7


def test_a_step_learns_the_same_however_its_rows_are_shared_out(make_run: MakeRun) -> None:
    rows = [{"prompt": "Go on", "completion": " five" * n} for n in (40, 1, 1, 40, 2, 40, 1, 3)]
    common = {"max_steps": 4, "learning_rate": 1e-2}
    alone = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    shared = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    whole = make_run(rows, recipe={**common, **alone}, name="whole")
    parts = make_run(rows, recipe={**common, **shared}, name="parts")
    assert main(whole) == main(parts) == 0
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)
    assert losses(whole)[-1] < losses(whole)[0]
