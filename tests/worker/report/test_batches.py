"""What batches held, counted from real collators; and the line through micro-batches' times."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tunesmith_schema import PhaseName
from tunesmith_worker.report.batches import WARM_UP, BatchCounts, Example, Fit


def rows(*lengths: int) -> list[Example]:
    return [{"input_ids": [1] * n, "labels": [1] * n} for n in lengths]


def collated(counts: BatchCounts, examples: list[Example], **collator: Any) -> Any:
    collate = DataCollatorForLanguageModeling(pad_token_id=0, **collator)
    return counts.counting(collate, lambda: PhaseName.DATA_WAIT)(examples)


def test_padding_is_what_the_collator_really_added() -> None:
    counts = BatchCounts([None])
    batch = collated(counts, rows(10, 4, 6))
    counts.handed_out([batch])
    assert batch["input_ids"].shape == (3, 10)
    assert (counts.slots, counts.tokens) == (30, 20)
    assert counts.slots - counts.tokens == int((batch["attention_mask"] == 0).sum())
    assert counts.pairs == 10**2 + 4**2 + 6**2


def test_rows_that_stand_end_to_end_have_no_padding() -> None:
    counts = BatchCounts([None, None])
    counts.handed_out([collated(counts, rows(10, 4, 6), padding_free=True)])
    assert (counts.slots, counts.tokens) == (20, 20)
    assert counts.pairs == 2 * (10**2 + 4**2 + 6**2), "of both layers"


def test_of_packed_rows_each_looks_at_itself_alone() -> None:
    counts = BatchCounts([None])
    packed: list[Example] = [{**rows(12)[0], "seq_lengths": [5, 7]}]
    counts.handed_out([collated(counts, packed, padding_free=True)])
    assert (counts.slots, counts.tokens, counts.pairs) == (12, 12, 5**2 + 7**2)


def test_a_window_is_counted_as_it_reaches() -> None:
    counts = BatchCounts([4])
    counts.handed_out([collated(counts, rows(10))])
    pairs = sum(min(4, 10 - start) for start in range(10))
    assert counts.pairs == pytest.approx(2 * pairs, rel=0.2)  # the diagonal counts half


def test_batches_collated_ahead_or_for_evaluation_do_not_count() -> None:
    counts = BatchCounts([None])
    first = collated(counts, rows(3, 5))
    collated(counts, rows(100))  # the loader is one ahead
    collate = DataCollatorForLanguageModeling(pad_token_id=0)
    counts.counting(collate, lambda: PhaseName.EVALUATION)(rows(50))
    counts.handed_out([first])
    assert (counts.slots, counts.tokens, counts.micro_batches) == (10, 8, 1)


def test_a_line_is_found_through_noisy_times() -> None:
    random.seed(0)
    fit = Fit()
    for _ in range(400):
        slots = random.randint(100, 900)
        fit.add(slots, 0.010 + 2e-5 * slots + random.gauss(0, 0.001))
    fixed, error = fit.fixed_seconds()
    assert abs(fixed - 0.010) < 3 * error < 0.001
    assert fit.mean_slots == pytest.approx(500, rel=0.1)


def test_times_go_to_the_micro_batches_in_their_order_and_the_first_are_left_out() -> None:
    counts = BatchCounts([None])
    batches = [collated(counts, rows(n)) for n in range(10, 20)]
    counts.handed_out(batches)
    for size in range(10, 20):
        counts.computed(PhaseName.FORWARD, size * 1.0)
        counts.computed(PhaseName.BACKWARD, size * 2.0)
        counts.computed(PhaseName.OPTIMIZER, 99.0)
    assert counts.fit.count == 10 - WARM_UP
    fixed, error = counts.fit.fixed_seconds()
    assert max(abs(fixed), error) < 1e-6
    assert counts.fit.mean_seconds == pytest.approx(3 * counts.fit.mean_slots)
