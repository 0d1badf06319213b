"""Drawings of completions: the reward curve under the slider, and bars of rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tunesmith_schema import Sample, SampleStep
from tunesmith_server.portal.view import path

WIDTH, HEIGHT = 1000, 48
"""Width and height of the drawing under the slider, in units of its SVG."""
BAR, BAR_HEIGHT = 8, 20
"""Width of a bar with its gap, and height of the highest bar."""
_LEAST = 2
"""Height of the lowest bar, so that a reward of 0 is visible."""
_MOST_BARS = 64


@dataclass(frozen=True, kw_only=True)
class Track:
    """The slider of steps, with the reward curve under it."""

    path: str
    """Attribute `d` of the curve's SVG path; empty for fewer than two known rewards."""
    first: int
    last: int
    stride: int
    """Number of steps between two positions of the slider."""
    at: float
    """Horizontal position of the shown step, in units of the SVG."""
    before: int | None
    """Previous step that has samples."""
    after: int | None


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Reward of one completion."""

    x: int
    y: float
    height: float
    tone: str
    """CSS class of the bar's colour."""


def track(steps: Sequence[SampleStep], shown: SampleStep) -> Track:
    numbers = [step.step for step in steps]
    first, last = numbers[0], numbers[-1]
    index = numbers.index(shown.step)
    return Track(
        path=_path(steps, first, last),
        first=first,
        last=last,
        stride=gcd(*(number - first for number in numbers)) or 1,
        at=_across(shown.step, first, last),
        before=numbers[index - 1] if index else None,
        after=numbers[index + 1] if index + 1 < len(numbers) else None,
    )


def _across(step: int, first: int, last: int) -> float:
    return (step - first) / (last - first) * WIDTH if last > first else 0.0


def _path(steps: Sequence[SampleStep], first: int, last: int) -> str:
    known = [(step.step, step.reward) for step in steps if step.reward is not None]
    if len(known) < 2:
        return ""
    rewards = [reward for _, reward in known]
    low, span = min(rewards), (max(rewards) - min(rewards)) or 1.0
    return path(
        (_across(step, first, last), HEIGHT - 3 - (reward - low) / span * (HEIGHT - 6))
        for step, reward in known
    )


def bars(samples: Sequence[Sample], low: float, high: float) -> list[Bar]:
    """Return one bar per reward, scaled from `low` to `high`; a completion without a reward gets an
    empty place."""
    span = (high - low) or 1.0
    found = []
    for place, sample in enumerate(samples[:_MOST_BARS]):
        if sample.reward is not None:
            share = max(0.0, min(1.0, (sample.reward - low) / span))
            height = _LEAST + share * (BAR_HEIGHT - _LEAST)
            tone = f"r{min(4, int(share * 5))}"
            found.append(Bar(x=place * BAR, y=BAR_HEIGHT - height, height=height, tone=tone))
    return found


def ends(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the ends of a scale that contains 0, 1 and all rewards."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    return min([0.0, *rewards]), max([1.0, *rewards])
