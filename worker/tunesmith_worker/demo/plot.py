"""Plot the losses of each job (loss.png) and the reward of the GRPO job (reward.png)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunesmith._sdk.plot import COLOURS, Curve, Panel, Plot

from .results import JobResult


def plot_losses(jobs: Sequence[JobResult], file: Path) -> None:
    metrics = {"train_loss": "training", "valid_loss": "validation"}
    Plot([_panel(job, metrics, "loss (nats per token)", None) for job in jobs]).save(file)


def plot_reward(job: JobResult, file: Path) -> None:
    metrics = {"reward": "training prompts", "valid_reward": "held-out prompts"}
    Plot([_panel(job, metrics, "mean reward", 1.05)]).save(file)


def _panel(job: JobResult, metrics: Mapping[str, str], label: str, top: float | None) -> Panel:
    curves = []
    for (metric, name), colour in zip(metrics.items(), COLOURS, strict=False):
        steps, values = job.curve(metric)
        is_validation = metric.startswith("valid")
        curves.append(
            Curve(name=name, steps=steps, values=values, is_validation=is_validation, colour=colour)
        )
    return Panel(title=job.title, label=label, curves=curves, top=top)
