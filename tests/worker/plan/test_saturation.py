"""Would more rows help: from two speeds, and from the passes of a run."""

from __future__ import annotations

import random

import pytest

from tunesmith_worker.plan.saturation import of_passes, of_two


def passes(fixed: float, per_token: float, *, noise: float = 0.0) -> list[tuple[int, float]]:
    draw = random.Random(0)
    tokens = [draw.randrange(500, 4000) for _ in range(80)]
    return [(n, (fixed + per_token * n) * (1 + noise * draw.random())) for n in tokens]


def test_a_doubling_that_gains_is_told_apart_from_one_that_does_not() -> None:
    assert not of_two(1024, 1000.0, 1400.0).saturated
    assert of_two(8192, 1000.0, 1010.0).saturated
    assert of_two(8192, 1000.0, 900.0).saturated


def test_the_gain_of_a_doubling_follows_from_the_passes_of_a_run() -> None:
    fixed, per_token = 0.2, 1e-4
    found = of_passes(passes(fixed, per_token))
    assert found is not None
    n = found.tokens
    speed, doubled = n / (fixed + per_token * n), 2 * n / (fixed + per_token * 2 * n)
    assert found.gain == pytest.approx(doubled / speed - 1, rel=1e-3)
    assert not found.saturated


def test_a_busy_device_is_saturated_even_if_some_passes_were_slow() -> None:
    timed = passes(0.001, 1e-4, noise=0.02)
    timed[5] = (timed[5][0], 3.0)
    found = of_passes(timed)
    assert found is not None
    assert found.saturated
    assert "only add memory" in found.sentence("GPU")


@pytest.mark.parametrize("timed", [[], passes(0.1, 1e-4)[:7], [(1000, 0.1)] * 50])
def test_too_little_to_tell_is_not_told(timed: list[tuple[int, float]]) -> None:
    assert of_passes(timed) is None
