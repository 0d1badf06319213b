"""Reward of the demo's GRPO job before and after, and one group of its completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

import tunesmith
from tunesmith_schema import MetricPoint
from tunesmith_schema import Sample as Completion

from .architecture import END

LAST_STEPS = 3
"""Number of steps in the reward `after`, because a single step has few prompts."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    text: str
    reward: float | None
    advantage: float | None


@dataclass(frozen=True, kw_only=True)
class RewardSummary:
    """Rewards are means over completions."""

    job_id: str
    before: float
    """Reward of the first step, whose completions are the base model's."""
    after: float
    """Mean reward of the last steps."""
    held_out: float | None
    """Reward at the end on held-out prompts."""
    json_share: float
    """Share of the first step's completions that start like JSON."""
    step: int
    """Step of `answers`."""
    question: str
    answers: tuple[Answer, ...]
    """The group of the first step with the largest spread of rewards."""


def reward_summary(job: tunesmith.Job) -> RewardSummary:
    """Summarise a reinforcement job that succeeded."""
    points = job.metrics()
    rewards, held_out = values(points, "reward"), values(points, "valid_reward")
    first = min(point.step for point in points)
    completions = list(job.samples(step=first))
    group = most_varied(completions)
    return RewardSummary(
        job_id=job.id,
        before=rewards[0],
        after=fmean(rewards[-LAST_STEPS:]),
        held_out=held_out[-1] if held_out else None,
        json_share=fmean(c.completion.lstrip().startswith("{") for c in completions),
        step=first,
        question=group[0].prompt.partition("user\n")[2].partition(END)[0],  # without the template
        answers=tuple(
            Answer(text=c.completion, reward=c.reward, advantage=c.advantage) for c in group
        ),
    )


def most_varied(completions: Sequence[Completion]) -> list[Completion]:
    """Return the group with the largest spread of rewards, which teaches the most."""
    ordered = sorted(completions, key=lambda c: c.group)
    return max((list(group) for _, group in groupby(ordered, key=lambda c: c.group)), key=_spread)


def values(points: Sequence[MetricPoint], metric: str) -> list[float]:
    return [value for point in points if (value := point.values.get(metric)) is not None]


def _spread(group: Sequence[Completion]) -> float:
    rewards = [c.reward for c in group if c.reward is not None]
    mean = fmean(rewards) if rewards else 0.0
    return sum((reward - mean) ** 2 for reward in rewards)
