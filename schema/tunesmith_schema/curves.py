"""Metrics of a job as columns, for charts."""

from __future__ import annotations

from typing import Literal

from .base import Response


class Curve(Response):
    """Values of one metric over the optimiser steps."""

    steps: list[int]
    values: list[float | None]
    """Values at `steps`, with six significant figures; null means NaN."""


class VoidCurves(Response):
    """Metrics of steps that a later attempt repeated. These metrics are not part of the run."""

    attempt: int
    """Number of the attempt that repeated the steps."""
    first_step: int
    last_step: int
    curves: dict[str, Curve]


class MetricColumns(Response):
    """Curves of a job, down-sampled so that all extreme values remain."""

    object: Literal["fine_tuning.job.metrics_columns"] = "fine_tuning.job.metrics_columns"
    job_id: str
    stretch: int
    """Number of steps per interval, a power of two. Intervals start at multiples of this number. A
    curve has the minimum, the maximum and the first NaN of each interval, and the value of the
    job's last step. If the number is 1, a curve has all values."""
    curves: dict[str, Curve]
    """Curves by metric."""
    void: list[VoidCurves]
    """Metrics of steps that a later attempt repeated."""
