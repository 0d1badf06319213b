"""Metrics of a job as columns, for charts."""

from __future__ import annotations

from typing import Literal

from .base import Response


class Curve(Response):
    """Values of one metric over the optimiser steps."""

    steps: list[int]
    values: list[float | None]
    """Six significant figures; null means NaN."""


class VoidCurves(Response):
    """Metrics of steps that a later attempt repeated; they are not part of the run."""

    attempt: int
    """Number of the attempt that repeated the steps."""
    first_step: int
    last_step: int
    curves: dict[str, Curve]


class MetricColumns(Response):
    """Curves of a job, down-sampled so that no spike is lost."""

    object: Literal["fine_tuning.job.metrics_columns"] = "fine_tuning.job.metrics_columns"
    job_id: str
    stretch: int
    """Steps of a stretch: a power of two. A stretch starts at a multiple of it, and has its least
    and its greatest value and its first NaN. 1 means that all values are here."""
    curves: dict[str, Curve]
    """Curves by metric."""
    void: list[VoidCurves]
    """Steps that a later attempt repeated."""
