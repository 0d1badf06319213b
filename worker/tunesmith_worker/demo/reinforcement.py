"""What the demo's reinforcement job did: its reward before and after, and a group that it drew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

import tunesmith
from tunesmith_schema import MetricPoint
from tunesmith_schema import Sample as Drawn

from .architecture import END
from .markdown import code, table

LAST_STEPS = 3
"""Whose rewards are averaged: one step has few prompts."""


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
    """Of the first step, whose completions are the base model's."""
    after: float
    """Of the last steps."""
    held_out: float | None
    """At the end, on prompts that were not trained on."""
    json_share: float
    """Of the first step's completions, those that begin as JSON does."""
    step: int
    """Of the group below."""
    question: str
    answers: tuple[Answer, ...]
    """The group whose rewards differ the most among those of the first step."""


_ABOUT = """\
The base model has read polite questions ("Who is ..., please?") with answers in prose and, as
often, in JSON. In the first step it gave JSON to {json:.0%} of them, not always with the right
facts. Nobody showed GRPO an answer. A grader read the model's own, a group of eight to each
question: a third for each fact that is right, if it is JSON at all. What is better than its group's
mean becomes more likely."""


def reward_summary(job: tunesmith.Job) -> RewardSummary:
    """Of a reinforcement job that succeeded."""
    points = job.metrics()
    rewards, held_out = values(points, "reward"), values(points, "valid_reward")
    first = min(point.step for point in points)
    drawn = list(job.samples(step=first))
    group = most_varied(drawn)
    return RewardSummary(
        job_id=job.id,
        before=rewards[0],
        after=fmean(rewards[-LAST_STEPS:]),
        held_out=held_out[-1] if held_out else None,
        json_share=fmean(one.completion.lstrip().startswith("{") for one in drawn),
        step=first,
        question=_question(group[0].prompt),
        answers=tuple(
            Answer(text=one.completion, reward=one.reward, advantage=one.advantage) for one in group
        ),
    )


def most_varied(samples: Sequence[Drawn]) -> list[Drawn]:
    """The group of a step with the widest rewards: it has the most to learn from."""
    in_order = sorted(samples, key=lambda one: one.group)
    groups = [list(group) for _, group in groupby(in_order, key=lambda one: one.group)]
    return max(groups, key=_spread)


def values(points: Sequence[MetricPoint], name: str) -> list[float]:
    return [value for point in points if (value := point.values.get(name)) is not None]


def _spread(group: Sequence[Drawn]) -> float:
    rewards = [one.reward for one in group if one.reward is not None]
    mean = fmean(rewards) if rewards else 0.0
    return sum((one - mean) ** 2 for one in rewards)


def render_reward(reward: RewardSummary) -> str:
    """A chapter of summary.md."""
    rises = [("training prompts", f"{reward.before:.2f}", f"{reward.after:.2f}")]
    if reward.held_out is not None:
        rises.append(("held-out prompts", "", f"{reward.held_out:.2f}"))
    group = [
        (code(one.text), _number(one.reward, ".2f"), _number(one.advantage, "+.2f"))
        for one in reward.answers
    ]
    parts = [
        "## Reward in place of answers",
        _ABOUT.format(json=reward.json_share),
        table(("mean reward", "of the first step", "of the last steps"), rises),
        "![reward of the GRPO job](reward.png)",
        f"A group of step {reward.step}:",
        table((f"asked {code(reward.question)}", "reward", "advantage"), group),
        "All that it drew, and where its time went, once the service runs again (see below):",
        f"```sh\ntunesmith jobs samples {reward.job_id}",
    ]
    return "\n\n".join(parts) + f"\ntunesmith jobs report {reward.job_id}\n```"


def _question(prompt: str) -> str:
    """Without the marks of the demo's chat template."""
    return prompt.partition("user\n")[2].partition(END)[0]


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else f"{value:{form}}"
