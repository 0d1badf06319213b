"""Health of recorded runs, of drawn curves, and of curves without a trend."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from tunesmith_schema import HealthState
from tunesmith_server.services.results.health_rules import METRICS, MIN_POINTS, Point, judge

RECORDED: dict[str, dict[str, list[tuple[int, float | None]]]] = json.loads(
    (Path(__file__).parent / "health_curves.json").read_bytes()
)
"""Curves of real runs of tiny models; a name begins with the run's health."""


def drawn(
    start: float, end: float, count: int, noise: float, seed: int
) -> list[tuple[int, float | None]]:
    """Draw a curve that falls or rises mostly in its first third."""
    draw = random.Random(seed)
    return [
        (n + 1, end + (start - end) * math.exp(-5 * n / count) + draw.gauss(0, noise))
        for n in range(count)
    ]


DRAWN: dict[str, dict[str, list[tuple[int, float | None]]]] = {
    "barely_moved_tiny_rate": {"train_loss": drawn(1.62, 1.615, 100, 0.05, 1)},
    "barely_moved_reward": {
        "reward": drawn(0.4, 0.4, 100, 0.05, 2), "reward_std": drawn(0.3, 0.3, 100, 0.02, 3),
    },
    "overfitting_many_epochs": {
        "train_loss": drawn(2.4, 0.2, 120, 0.05, 4),
        "valid_loss": [(20, 2.0), (40, 1.8), (60, 1.85), (80, 1.97), (100, 2.1), (120, 2.2)],
    },
    "no_reward_spread_all_right": {
        "reward": drawn(0.98, 0.98, 30, 0.01, 5),
        "frac_reward_zero_std": drawn(0.96, 0.96, 30, 0.01, 6),
    },
    "learning_noisy_batches": {"train_loss": drawn(1.9, 1.3, 200, 0.25, 9)},
    "learning_reward": {
        "reward": drawn(0.35, 0.6, 60, 0.04, 7), "reward_std": drawn(0.4, 0.3, 60, 0.02, 8),
    },
}  # fmt: skip
RUNS = RECORDED | DRAWN


def points(values: list[tuple[int, float | None]]) -> list[Point]:
    return [Point(step, value, int(value is None)) for step, value in values]


def health(**curves: list[float | None]) -> tuple[str, str]:
    """Judge curves with one value for each step."""
    verdict = judge({name: points(list(enumerate(c, start=1))) for name, c in curves.items()})
    return str(verdict.state), verdict.text


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_planted_run_gets_its_word(name: str) -> None:
    verdict = judge({metric: points(curve) for metric, curve in RUNS[name].items()})
    assert name.startswith(f"{verdict.state}_"), verdict
    assert verdict.text.endswith(".")
    assert verdict.step == max(curve[-1][0] for curve in RUNS[name].values())


def test_every_word_is_planted_twice_and_ten_runs_are_good() -> None:
    counts = {state: sum(name.startswith(f"{state}_") for name in RUNS) for state in HealthState}
    assert counts.pop(HealthState.LEARNING) >= 10
    assert min(counts.values()) >= 2, counts


def test_a_rate_of_one_is_no_success_with_three_logged_steps() -> None:
    state, text = health(train_loss=[1.6, 19.0, 2.7])
    assert state == "diverged"
    assert text == "The training loss rose from 1.6 to 19 at step 2 and is now 2.7."


def test_equal_groups_are_no_success_from_the_first_step_on() -> None:
    state, text = health(reward=[1.0], reward_std=[0.0], frac_reward_zero_std=[1.0])
    assert state == "no_reward_spread"
    assert "100% of the groups had equal rewards (mean 1)" in text
    assert health(reward=[0.0, 0.0], reward_std=[0.0, 0.0])[0] == "no_reward_spread"


def test_groups_that_became_equal_by_learning_are_a_success() -> None:
    rewards = [min(1.0, 0.1 + 0.09 * step) for step in range(60)]
    equal = [float(reward >= 1.0) for reward in rewards]
    assert sum(equal) / len(equal) > 0.8
    state, _ = health(reward=list(rewards), frac_reward_zero_std=[0.95, *equal[1:]])
    assert state == "learning"


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ([2.0, None, None, None], "diverged"),
        ([2.0 - 0.1 * step for step in range(9)] + [None], "diverged"),
        ([2.0, None] + [1.9 - 0.1 * step for step in range(9)], "learning"),
        ([], "unclear"),
        ([2.0, 1.0], "unclear"),
    ],
)
def test_nan_and_short_runs(losses: list[float | None], state: str) -> None:
    assert health(train_loss=losses)[0] == state


def test_one_odd_batch_is_no_divergence() -> None:
    noise = random.Random(1)
    losses: list[float | None] = [2 - 0.01 * n + noise.gauss(0, 0.03) for n in range(60)]
    losses[30] = 9.0
    assert health(train_loss=losses)[0] == "learning"


def test_updates_that_are_rounded_away_are_named() -> None:
    state, text = health(train_loss=[2.0, 2.01] * 10, updates_lost_fraction=[0.97] * 20)
    assert state == "barely_moved"
    assert "97% of the weight updates were rounded away" in text


def test_a_reward_that_falls_after_its_peak_is_a_collapse() -> None:
    noise = random.Random(2)
    rewards = [0.3 + 0.02 * n for n in range(20)] + [0.1] * 20
    noisy: list[float | None] = [reward + noise.gauss(0, 0.02) for reward in rewards]
    assert health(reward=noisy, reward_std=[0.3] * 40)[0] == "diverged"


def test_a_validation_reward_that_falls_is_overfitting() -> None:
    rewards: list[float | None] = [0.2 + 0.015 * n for n in range(40)]
    valid: list[float | None] = [0.3, 0.5, 0.3]
    assert health(reward=rewards, reward_std=[0.3] * 40, valid_reward=valid)[0] == "overfitting"


@pytest.mark.parametrize("count", [MIN_POINTS, 20, 60])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_curves_without_a_trend_are_hardly_ever_called_learning_or_diverged(
    count: int, noise: float
) -> None:
    wrong = 0
    for seed in range(200):
        draw = random.Random(seed)
        losses: list[float | None] = [2 + draw.gauss(0, noise) for _ in range(count)]
        wrong += health(train_loss=losses)[0] in ("learning", "diverged", "overfitting")
    assert wrong <= 2, "about 1 in 1000 is expected"


@pytest.mark.parametrize("rate", [0.03, 0.15, 0.5])
def test_a_fall_is_seen_whether_it_is_fast_or_slow(rate: float) -> None:
    for seed in range(50):
        draw = random.Random(seed)
        losses: list[float | None] = [
            1.2 + 0.9 * math.exp(-step / (100 * rate)) + draw.gauss(0, 0.08) for step in range(100)
        ]
        assert health(train_loss=losses)[0] == "learning", seed


def test_the_rules_name_every_metric_that_they_read() -> None:
    assert len(set(METRICS)) == len(METRICS) == 7
