"""Plots of the page as SVG. Each plot contains a digest of its data, so that a test can check the
plot with any version of matplotlib.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OURS, OTHERS = "#1f6f6b", ("#b9c4c9", "#93a3ab", "#d9a441")
INK = "#22303a"


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Data of a plot: groups of horizontal bars."""

    title: str
    unit: str
    groups: tuple[str, ...]
    series: dict[str, tuple[float | None, ...]]
    """Values for each group, by the name of the series. Our series comes first. None means that the
    value is missing."""
    marks: tuple[float | None, ...] = ()
    """Required value of each group."""

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


def draw(bars: Bars, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "tunesmith", "font.family": "DejaVu Sans"})
    thick = 0.8 / len(bars.series)
    height = 1.2 + 0.42 * len(bars.groups) * max(1.0, 0.6 * len(bars.series))
    figure, axes = plt.subplots(figsize=(8.6, height), layout="constrained")
    colours = (OURS, *OTHERS)
    largest = max(v for values in bars.series.values() for v in values if v is not None)
    for index, (name, values) in enumerate(bars.series.items()):
        places = [group + (index + 0.5) * thick - 0.4 for group in range(len(bars.groups))]
        widths = [value or 0.0 for value in values]
        axes.barh(places, widths, thick * 0.92, color=colours[index], label=name)
        for place, value in zip(places, values, strict=True):
            if value is not None:
                shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
                axes.text(value + largest * 0.012, place, shown, va="center", size=9, color=INK)
    _mark(axes, bars.marks)
    axes.set_yticks(range(len(bars.groups)), bars.groups, size=9)
    axes.invert_yaxis()
    axes.set_xlim(0, largest * 1.13)
    axes.set_xlabel(bars.unit, size=9)
    axes.set_title(bars.title, size=11, loc="left", color=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False, labelsize=9)
    if len(bars.series) > 1 or any(bars.marks):
        figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=5)
    figure.savefig(path, metadata={"Date": None, "Description": bars.digest()})
    plt.close(figure)


def _mark(axes: object, marks: Sequence[float | None]) -> None:
    label: str | None = "bar"
    for group, mark in enumerate(marks):
        if mark is not None:
            axes.plot(  # type: ignore[attr-defined]  # matplotlib is untyped
                [mark, mark], [group - 0.45, group + 0.45], color="#c0392b", lw=1.8, label=label
            )
            label = None
