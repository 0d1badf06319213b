"""Plots of metrics, drawn by matplotlib (extra `plot`)."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith._http.errors import TunesmithError
from tunesmith_schema import MetricColumns, MetricPoint

COLOURS = (
    "#4477aa", "#cc3311", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000",
)  # fmt: skip
"""Colours that colour-blind people can distinguish (Paul Tol's palette, and black)."""
AXES = (
    ("loss (nats per token)", "train_loss", "valid_loss"),
    ("mean reward", "reward", "valid_reward"),
)
"""Panels of a plot: label of the y axis, training metric and validation metric."""
METRICS = tuple(name for _, *names in AXES for name in names)
MAX_POINTS = 1000
"""Maximum number of points to fetch for a curve. A plot cannot show more points."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a panel."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]
    is_validation: bool = False
    colour: str = COLOURS[0]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One diagram of a plot."""

    label: str
    """Label of the y axis."""
    curves: Sequence[Curve]
    title: str = ""
    top: float | None = None
    """Upper limit of the y axis; None means the maximum of the curves."""


class Plot:
    """A plot, which a notebook shows as a picture. `figure` is the `matplotlib.figure.Figure`."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self.figure = _draw(panels)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the plot to a file; the name's ending sets the format (png, svg, pdf)."""
        self.figure.savefig(file, dpi=130)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.figure.savefig(out, format="png", dpi=110)
        return out.getvalue()


def points_of(
    curves: Iterable[tuple[str, Iterable[int], Iterable[float | None]]],
) -> list[MetricPoint]:
    """Convert the curves of one job to one point per step, lowest step first. A point has the
    values of all curves at its step. Each curve is a tuple: metric, steps, values."""
    values: dict[int, dict[str, float | None]] = {}
    for metric, steps, numbers in curves:
        for step, value in zip(steps, numbers, strict=True):
            values.setdefault(step, {})[metric] = value
    return [MetricPoint(id=str(step), step=step, values=values[step]) for step in sorted(values)]


def points_of_job(found: MetricColumns) -> list[MetricPoint]:
    """Convert the curves of a job to one point per step, lowest step first."""
    return points_of((name, curve.steps, curve.values) for name, curve in found.curves.items())


def curve_of(points: Sequence[MetricPoint], metric: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of a metric, without nulls (NaN)."""
    pairs = [(p.step, v) for p in points if (v := p.values.get(metric)) is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def panels_of(jobs: Mapping[str, Sequence[MetricPoint]]) -> list[Panel]:
    """Return the panels of a plot, which show the curves of all jobs.

    `jobs`: metrics of each job, with the job's name as the key. A reinforcement job has only a
    panel for the reward, because the loss does not show progress in reinforcement.
    """
    panels = []
    for label, train, valid in AXES:
        curves = []
        for number, (name, points) in enumerate(jobs.items()):
            is_reward = any("reward" in point.values for point in points)
            if is_reward == (train == "train_loss"):
                continue
            for metric in (train, valid):
                steps, values = curve_of(points, metric)
                kind = "validation" if metric == valid else "training"
                curves.append(
                    Curve(
                        name=f"{name} {kind}" if len(jobs) > 1 else kind,
                        steps=steps,
                        values=values,
                        is_validation=metric == valid,
                        colour=COLOURS[
                            number % len(COLOURS) if len(jobs) > 1 else int(metric == valid)
                        ],
                    )
                )
        curves = [curve for curve in curves if curve.steps]
        if curves:
            panels.append(Panel(label=label, curves=curves))
    return panels


def _draw(panels: Sequence[Panel]) -> Any:  # Any: matplotlib is untyped
    try:
        from matplotlib.figure import Figure  # an optional dependency, slow to import
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise TunesmithError(
            "plots need matplotlib, which is not installed",
            hint="pip install 'tunesmith[plot]'",
        ) from error
    figure = Figure(figsize=(5.6 * max(1, len(panels)), 4.2), layout="constrained")
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=False):
        for curve in panel.curves:
            axis.plot(
                *(curve.steps, curve.values),
                color=curve.colour,
                linestyle="--" if curve.is_validation else "-",
                marker="o" if curve.is_validation or len(curve.steps) < 3 else "",
                markersize=4,
                label=curve.name,
            )
        axis.set_title(panel.title)
        axis.set_xlabel("optimiser step")
        axis.set_ylabel(panel.label)
        axis.set_ylim(None if panel.top is None else 0, panel.top)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    return figure
