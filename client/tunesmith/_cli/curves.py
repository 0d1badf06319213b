"""Drawing of curves as text; each curve has its own character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

WIDTH, HEIGHT = 62, 14
"""Numbers of columns and lines of the drawing, without axes."""
COLOURS = ("cyan", "red", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve, and the character that draws the curve."""

    name: str
    sign: str
    steps: Sequence[int]
    values: Sequence[float]
    colour: str = COLOURS[0]
    is_joined: bool = True
    """True if the points are joined by a line."""


def draw(lines: Sequence[Line], label: str) -> Text:
    """Draw the curves over the optimiser steps as text, with a legend. Extreme values are cut off,
    so that one peak does not make the rest of the curve flat."""
    drawn = [line for line in lines if line.values]
    if not drawn:
        return Text(f"{label}: no values")
    low, high = _range([value for line in drawn for value in line.values])
    first = min(line.steps[0] for line in drawn)
    last = max(line.steps[-1] for line in drawn)
    cells: dict[tuple[int, int], Line] = {}
    for line in drawn:
        for column, value in _columns(line, first, last):
            share = (min(max(value, low), high) - low) / (high - low)
            cells[round((1 - share) * (HEIGHT - 1)), column] = line
    text = Text(f"{label}\n", no_wrap=True)
    for row in range(HEIGHT):
        text.append(f"{high - (high - low) * row / (HEIGHT - 1):>9.3g} |", "dim")
        for column in range(WIDTH):
            cell = cells.get((row, column))
            text.append(cell.sign if cell else " ", cell.colour if cell else "")
        text.append("\n")
    text.append(f"{'':9} +{'-' * WIDTH}\n", "dim")
    text.append(f"{'step':>9}  {first:<{WIDTH - 8}}{last:>8}\n", "dim")
    for line in drawn:
        text.append(f"{'':11}{line.sign}", line.colour)
        text.append(f" {line.name}\n")
    return text


def _columns(line: Line, first: int, last: int) -> list[tuple[int, float]]:
    """Return the value of a curve in each column: the mean of the points in the column. If the
    points are joined by a line, columns without points are interpolated."""
    span = max(1, last - first)
    sums: dict[int, list[float]] = {}
    for step, value in zip(line.steps, line.values, strict=True):
        sums.setdefault(round((step - first) / span * (WIDTH - 1)), []).append(value)
    known = [(column, sum(values) / len(values)) for column, values in sorted(sums.items())]
    if not line.is_joined:
        return known
    filled = known[:1]
    for (left, start), (right, end) in pairwise(known):
        for column in range(left + 1, right + 1):
            filled.append((column, start + (end - start) * (column - left) / (right - left)))
    return filled


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of the y axis. Peaks that are far above nearly all other values are outside
    the limits."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    most = ordered[int(0.98 * (len(ordered) - 1))]
    if high - low > 4 * (most - low) > 0:
        high = most
    return (low, high) if high > low else (low - 0.5, high + 0.5)
