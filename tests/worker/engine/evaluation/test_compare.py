"""Verdicts on planted differences, and the bootstrap interval behind them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.random import Generator

from tunesmith_worker.engine.evaluation.compare import (
    LEAST_ROWS,
    Difference,
    compare,
    compare_losses,
    t_quantile,
    verdict,
)
from tunesmith_worker.engine.evaluation.scores import RowScores

SEEDS = range(20)


def scores(generator: Generator, rows: int, shift: float = 0.0) -> tuple[RowScores, RowScores]:
    """Make the scores of two models whose true losses differ by `shift` nats per token."""
    tokens = generator.integers(1, 40, rows)
    hardness = generator.gamma(2.0, 0.8, rows)
    pair = [
        RowScores(
            nll=tokens * (hardness + generator.normal(0.0, 0.3, rows) + offset),
            tokens=tokens,
            correct=np.zeros(rows, dtype=np.int64),
        )
        for offset in (0.0, shift)
    ]
    return pair[0], pair[1]


def planted(seed: int, shift: float) -> Difference:
    """Compare a model with one that is worse by `shift`; the number of rows varies."""
    generator = np.random.default_rng(seed)
    first, second = scores(generator, int(generator.integers(20, 200)), shift)
    return compare_losses(first, second, seed=seed)


def test_a_really_better_model_is_called_better_twenty_times() -> None:
    assert [planted(seed, 0.4).outcome for seed in SEEDS] == ["better"] * 20


def test_a_really_worse_model_is_called_worse_twenty_times() -> None:
    assert [planted(seed, -0.4).outcome for seed in SEEDS] == ["worse"] * 20


def test_equal_models_are_never_called_better_in_twenty_seeds() -> None:
    outcomes = [planted(1000 + seed, 0.0).outcome for seed in SEEDS]
    assert outcomes == ["no_difference"] * 20


def test_equal_models_win_as_rarely_as_the_level_says_also_with_few_rows() -> None:
    """1,000 equal pairs with heavy tails and 10 rows: about 0.5 % may win by chance."""
    generator = np.random.default_rng(0)
    gains = generator.gamma(2.0, 1.0, (1_000, 10)) - generator.gamma(2.0, 1.0, (1_000, 10))
    wins = sum(compare(row, seed=i).low > 0 for i, row in enumerate(gains))
    assert 1 <= wins <= 12


def test_the_interval_of_normal_differences_is_a_t_interval() -> None:
    gains = np.random.default_rng(3).normal(1.0, 2.0, 40)
    found = compare(gains, seed=0)
    half = t_quantile(0.995, 39) * gains.std(ddof=1) / math.sqrt(40)
    assert found.value == pytest.approx(gains.mean())
    assert found.margin == pytest.approx(half, rel=0.05)


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 1, 12.7062), (0.975, 7, 2.3646), (0.9875, 9, 2.6850), (0.975, 200, 1.9719)],
)
def test_the_quantiles_of_students_t_are_the_tabulated_ones(
    probability: float, freedom: int, expected: float
) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=2e-4)


def test_the_same_seed_gives_the_same_interval_and_more_comparisons_a_wider_one() -> None:
    gains = np.random.default_rng(1).normal(0.2, 1.0, 60)
    one, again, of_two = (compare(gains, seed=5, of=k) for k in (1, 1, 2))
    assert one == again
    assert of_two.level == 0.995
    assert of_two.margin > one.margin


def test_a_long_row_weighs_more_than_a_short_one() -> None:
    gains, weights = np.array([9.0, -1.0] * 10), np.array([90.0, 10.0] * 10)
    assert compare(gains, weights, seed=0).value == pytest.approx(0.08)


def test_a_loss_that_is_not_finite_is_worse() -> None:
    good, bad = scores(np.random.default_rng(2), 30)
    broken = RowScores(nll=bad.nll * np.nan, tokens=bad.tokens, correct=bad.correct)
    found = compare_losses(broken, good, seed=0)
    assert found.outcome == "worse"
    assert verdict(found, "nats", "rows") == "worse: the model's loss is not finite on 30 rows"
    assert compare_losses(good, broken, seed=0).outcome == "better"
    assert compare_losses(broken, broken, seed=0).outcome == "no_difference"


def test_too_few_rows_give_no_verdict() -> None:
    found = compare(np.ones(LEAST_ROWS - 1), seed=0)
    assert found.outcome == "no_difference"
    assert verdict(found, "nats", "rows") == (
        "no difference shown: a verdict needs at least 8 rows, got 7"
    )


def test_the_verdict_has_figures_and_rows() -> None:
    def words(value: float, low: float, high: float) -> str:
        difference = Difference(value=value, low=low, high=high, level=0.95, rows=80)
        return verdict(difference, "nats", "rows")

    assert words(0.31, 0.26, 0.36) == "better by 0.31 ± 0.05 nats on 80 rows"
    assert words(-0.31, -0.36, -0.26) == "worse by 0.31 ± 0.05 nats on 80 rows"
    assert words(0.01, -0.04, 0.06) == "no difference shown (0.01 ± 0.05 nats on 80 rows)"
    assert words(0.004, 0.002, 0.006) == "better by 0.004 ± 0.002 nats on 80 rows"
    assert words(0.0004, 0.0002, 0.0006) == "no difference shown (0.0004 ± 0.0002 nats on 80 rows)"
    assert words(0.0, 0.0, 0.0) == "no difference shown (0.00 ± 0.00 nats on 80 rows)"


def test_different_rows_are_not_compared() -> None:
    first, _ = scores(np.random.default_rng(0), 10)
    with pytest.raises(ValueError, match="different rows"):
        compare_losses(first, first.first(9), seed=0)
