"""A job's curves as lists of steps and values, thinned to few points without losing extreme
values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json
from sqlalchemy.orm import Session

from tunesmith_server.models import JobRow

from . import curve_chunks
from .curve_chunks import Curve, Span

MAX_POINTS = 10_000
"""Maximum number of points of a curve that a request may ask for."""
_LARGEST = 1.79769e308


def columns(
    session: Session,
    job: JobRow,
    *,
    names: Sequence[str] | None,
    points: int,
    first: int | None,
    last: int | None,
) -> bytes:
    """Return `MetricColumns` as JSON. The result has the metrics `names` (all metrics if None) from
    step `first` to step `last`, with at most `points` values per curve."""
    known = curve_chunks.ends(session, [job.id])[job.id]
    low = max(first or 0, known[0])
    high = min(known[1] if last is None else last, 2**31 - 1)
    span = span_of(job, low, max(low, high), points)
    own = curve_chunks.read(session, [span], names)[job.id]
    void = curve_chunks.read_void(session, span, names)
    document = {
        "object": "fine_tuning.job.metrics_columns",
        "job_id": job.id,
        "stretch": span.width,
        "curves": _curves(own),
        "void": [
            {
                "attempt": attempt,
                "first_step": min(curve.steps[0] for curve in curves.values()),
                "last_step": max(curve.steps[-1] for curve in curves.values()),
                "curves": _curves(curves),
            }
            for attempt, curves in void.items()
        ],
    }
    return to_json(document)


def span_of(job: JobRow, low: int, high: int, points: int) -> Span:
    """Return the span from step `low` to step `high`, with intervals so wide that a curve has at
    most `points` values."""
    return Span.around(job, low, high, stretch(low, high, points))


def stretch(low: int, high: int, points: int) -> int:
    """Return the number of steps in an interval, so that a curve has at most `points` values.

    If the range has at most `points` steps, return 1: the curve has the value of each step. For a
    longer range, return the smallest power of two for which `points` is enough: the curve has the
    minimum and maximum of each interval, and the job's last value."""
    if high - low < points:
        return 1
    width = 2
    while (high // width - low // width + 1) * 2 + 1 > points:
        width *= 2
    return width


def _curves(curves: Mapping[str, Curve]) -> dict[str, Any]:  # Any: JSON
    return {
        name: {"steps": curve.steps, "values": [rounded(value) for value in curve.values]}
        for name, curve in curves.items()
    }


def rounded(value: float) -> float | None:
    """Return the value with six significant figures; None for NaN and infinity."""
    return float(f"{value:.6g}") if abs(value) <= _LARGEST else None
