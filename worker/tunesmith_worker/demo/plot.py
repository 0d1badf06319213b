"""Plot the losses of each job (loss.png) and the reward of the GRPO job (reward.png)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")  # no display needed
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from .results import JobResult

COLOURS = ("#4477aa", "#cc3311")
"""Distinguishable for the colour-blind (Paul Tol's palette)."""


def plot_losses(jobs: Sequence[JobResult], file: Path) -> None:
    metrics = {"train_loss": "training", "valid_loss": "validation"}
    _plot(jobs, metrics, "loss (nats per token)", None, file)


def plot_reward(job: JobResult, file: Path) -> None:
    metrics = {"reward": "training prompts", "valid_reward": "held-out prompts"}
    _plot([job], metrics, "mean reward", 1.05, file)


def _plot(
    jobs: Sequence[JobResult], metrics: Mapping[str, str], label: str, top: float | None, file: Path
) -> None:
    """Draw a panel for each job. `metrics`: legend text of each metric. `top`: upper limit of y."""
    size = (5.6 * len(jobs), 4.2)
    figure, panels = plt.subplots(1, len(jobs), figsize=size, layout="constrained", squeeze=False)
    for panel, job in zip(panels[0], jobs, strict=True):
        for (metric, name), colour in zip(metrics.items(), COLOURS, strict=True):
            marker = "o" if metric.startswith("valid") else ""
            panel.plot(*job.curve(metric), color=colour, marker=marker, markersize=4, label=name)
        panel.set_title(job.title)
        panel.set_xlabel("optimiser step")
        panel.set_ylabel(label)
        panel.set_ylim(0, top)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.25)
        panel.legend(frameon=False)
    figure.savefig(file, dpi=130)
    plt.close(figure)
