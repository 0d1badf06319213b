"""loss.png and reward.png: the losses of each job, and the reward of the GRPO job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("agg")  # no display needed
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tunesmith_schema import MetricPoint

TRAIN, VALID = "#4477aa", "#cc3311"
"""Distinguishable for the colour-blind (Paul Tol's palette)."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    title: str
    points: Sequence[MetricPoint]

    def values(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the steps and values of a metric, without nulls (NaN)."""
        pairs = [(p.step, v) for p in self.points if (v := p.values.get(metric)) is not None]
        return [step for step, _ in pairs], [value for _, value in pairs]


def plot_losses(curves: Sequence[Curve], file: Path) -> None:
    width = 5.6 * len(curves)
    figure, axes = plt.subplots(
        1, len(curves), figsize=(width, 4.2), layout="constrained", squeeze=False
    )
    for axis, curve in zip(axes[0], curves, strict=True):
        _draw(axis, curve, ("train_loss", "training"), ("valid_loss", "validation"))
        axis.set_ylim(bottom=0)
        axis.set_ylabel("loss (nats per token)", fontsize=11)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def plot_reward(curve: Curve, file: Path) -> None:
    figure, axis = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
    _draw(axis, curve, ("reward", "training prompts"), ("valid_reward", "held-out prompts"))
    axis.set_ylim(0, 1.05)
    axis.set_ylabel("mean reward", fontsize=11)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _draw(axis: Axes, curve: Curve, train: tuple[str, str], valid: tuple[str, str]) -> None:
    """Draw two metrics, each given as its name and its label."""
    axis.plot(*curve.values(train[0]), color=TRAIN, linewidth=1.4, label=train[1])
    axis.plot(*curve.values(valid[0]), color=VALID, marker="o", markersize=4, label=valid[1])
    axis.set_title(curve.title, fontsize=12)
    axis.set_xlabel("optimiser step", fontsize=11)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=11)
