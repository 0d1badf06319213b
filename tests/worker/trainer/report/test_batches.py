"""What batches held, and the line through micro-batches' times."""

from __future__ import annotations

import random

import pytest

from tunesmith_schema import PhaseName
from tunesmith_worker.trainer.report.batches import WARM_UP, BatchCounts, Fit


def test_tokens_are_the_rows_and_slots_the_places_they_were_given() -> None:
    counts = BatchCounts([None, None])
    counts.step([10, 4, 6])
    counts.micro_batch(20)  # two rows, side by side
    counts.micro_batch(6)
    assert (counts.tokens, counts.slots, counts.micro_batches) == (20, 26, 2)
    assert counts.pairs == 2 * (10**2 + 4**2 + 6**2), "of both layers"


def test_a_window_is_counted_as_far_as_it_reaches() -> None:
    counts = BatchCounts([64])
    counts.step([512])
    pairs = sum(min(64, before + 1) for before in range(512))
    assert counts.pairs == pytest.approx(2 * pairs, rel=0.02)  # the diagonal counts half


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
    counts = BatchCounts([])
    for size in range(10, 20):  # all begin before the first one's time is known, as on a GPU
        counts.micro_batch(size)
    for size in range(10, 20):
        counts.computed(PhaseName.FORWARD, size * 1.0)
        counts.computed(PhaseName.BACKWARD, size * 2.0)
        counts.computed(PhaseName.OPTIMIZER, 99.0)
    assert counts.fit.count == 10 - WARM_UP
    fixed, error = counts.fit.fixed_seconds()
    assert max(abs(fixed), error) < 1e-6
    assert counts.fit.mean_seconds == pytest.approx(3 * counts.fit.mean_slots)


@pytest.mark.parametrize("in_forward", [True, False])
def test_a_step_that_begins_again_is_counted_once(in_forward: bool) -> None:
    """Memory ran out in the second micro-batch of a step; times still go to their sizes."""
    counts = BatchCounts([])

    def computed(size: int) -> None:
        counts.computed(PhaseName.FORWARD, size * 1.0)
        counts.computed(PhaseName.BACKWARD, size * 2.0)

    for _ in range(WARM_UP):
        counts.micro_batch(10)
        computed(10)
    counts.step([100, 50])
    counts.micro_batch(100)
    computed(100)
    counts.micro_batch(50)
    if not in_forward:
        computed(50)
    counts.restart_step(in_forward=in_forward)
    if in_forward:
        counts.computed(PhaseName.FORWARD, 77.0)  # the one that failed
    for size in (70, 30, 40, 10):
        counts.micro_batch(size)
        computed(size)
    assert (counts.slots, counts.micro_batches) == (10 * WARM_UP + 150, WARM_UP + 4)
    assert counts.fit.mean_seconds == pytest.approx(3 * counts.fit.mean_slots)
