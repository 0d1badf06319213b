"""Results of a demo: its jobs, and the comparison of the model with and without the adapter."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import tunesmith
from tunesmith_schema import MetricPoint

LAST_STEPS = 3
"""Number of last steps whose rewards are averaged, because a single step has few prompts."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    title: str
    rows: int
    job: tunesmith.Job
    points: Sequence[MetricPoint]

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the steps and values of a metric; null values (NaN) are left out."""
        pairs = [(p.step, v) for p in self.points if (v := p.values.get(metric)) is not None]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def last(self, metric: str) -> float | None:
        values = self.curve(metric)[1]
        return values[-1] if values else None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Results of one model on the held-out rows."""

    loss: float
    """Mean loss per labelled token, in nats."""
    answers: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    prompts: Sequence[str]
    expected: Sequence[str]
    base: Scores
    tuned: Scores
    num_rows: int
    """Number of held-out rows that the losses cover."""
    parameters: int
    """Number of parameters of the base model."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    output: Path
    model_dir: Path | None
    """Folder of the service's base models, named in the command that starts the service again."""
    device: str
    seconds: float
    """Duration of the demo."""
    comparison: Comparison
    tune: JobResult
    pretrain: JobResult | None = None
    """Result of the job that trains the base model; None for a user's own model."""
    grpo: JobResult | None = None

    @property
    def jobs(self) -> list[JobResult]:
        return [job for job in (self.pretrain, self.tune, self.grpo) if job is not None]

    def figures(self) -> dict[str, tuple[float, float]]:
        """Return the figures of the comparison. Each figure is a pair of values: for the base
        model, and for the model with adapter."""
        expected, models = self.comparison.expected, (self.comparison.base, self.comparison.tuned)
        figures = {}
        if self.pretrain is not None:  # prompts of the invented world have one right answer
            for name, share in (("exact match", exact_match), ("all facts right", facts_right)):
                base, tuned = (share(model.answers, expected) for model in models)
                figures[name] = (base, tuned)
        return {**figures, "loss per token": (models[0].loss, models[1].loss)}

    def rewards(self) -> dict[str, float]:
        """Return mean rewards of the GRPO job. The mean of the first step is the base model's,
        because training has not changed the weights yet."""
        if self.grpo is None:
            return {}
        _, values = self.grpo.curve("reward")
        rewards = {"first step": values[0], "last steps": fmean(values[-LAST_STEPS:])}
        held_out = self.grpo.last("valid_reward")
        return rewards if held_out is None else {**rewards, "held-out prompts": held_out}

    def to_json(self) -> str:
        content = {"figures": self.figures(), "rewards": self.rewards(), "seconds": self.seconds}
        return json.dumps(content, indent=2) + "\n"


def exact_match(answers: Sequence[str], expected: Sequence[str]) -> float:
    """Return the share of answers that are equal to the expected answer."""
    return fmean(a == e for a, e in zip(answers, expected, strict=True))


def facts_right(answers: Sequence[str], expected: Sequence[str]) -> float:
    """Return the share of answers, in JSON or prose, with all facts of the expected record."""
    return fmean(
        set(json.loads(record).values()) <= set(re.findall(r"[a-z]+", answer))
        for answer, record in zip(answers, expected, strict=True)
    )
