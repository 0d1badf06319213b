"""loss.png: training and validation loss of each job, side by side; reward.png: the reward."""

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
"""Told apart by the colour-blind as well (Paul Tol's palette)."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    title: str
    points: Sequence[MetricPoint]

    def of(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric; nulls (NaN) are left out."""
        found = [(p.step, v) for p in self.points if (v := p.values.get(name)) is not None]
        return [step for step, _ in found], [value for _, value in found]


def plot_losses(curves: Sequence[Curve], file: Path) -> None:
    figure, axes = plt.subplots(
        1, len(curves), figsize=(5.6 * len(curves), 4.2), layout="constrained", squeeze=False
    )
    for axis, curve in zip(axes[0], curves, strict=True):
        axis.plot(*curve.of("train_loss"), color=TRAIN, linewidth=1.4, label="training")
        axis.plot(
            *curve.of("valid_loss"), color=VALID, marker="o", markersize=4, label="validation"
        )
        axis.set_ylim(bottom=0)
        _label(axis, curve.title, "loss (nats per token)")
    figure.savefig(file, dpi=130)
    plt.close(figure)


def plot_reward(curve: Curve, file: Path) -> None:
    """Mean reward of each step's completions, and on the held-out prompts; from 0 to 1."""
    figure, axis = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
    axis.plot(*curve.of("reward"), color=TRAIN, linewidth=1.4, label="training prompts")
    axis.plot(
        *curve.of("valid_reward"), color=VALID, marker="o", markersize=4, label="held-out prompts"
    )
    axis.set_ylim(0, 1.05)
    _label(axis, curve.title, "mean reward")
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _label(axis: Axes, title: str, quantity: str) -> None:
    axis.set_title(title, fontsize=12)
    axis.set_xlabel("optimiser step", fontsize=11)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel(quantity, fontsize=11)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=11)
