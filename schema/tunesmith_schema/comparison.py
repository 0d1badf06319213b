"""Comparison of jobs: results, settings that differ, and aligned curves."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .base import Response
from .evaluation import EvaluationSummary
from .health import JobHealth

Axis = Literal["step", "tokens", "hours"]


class MetricResult(Response):
    """Last and best value of a metric."""

    last: float | None = None
    """Null means NaN."""
    best: float | None = None
    """Least loss, or greatest reward; null if all values are NaN."""
    best_step: int | None = None


class ComparedData(Response):
    """Data file of a job."""

    id: str
    filename: str | None = None
    """Null if the file was deleted."""
    sha256: str | None = None
    """Files with equal contents have the same hash."""
    rows: int | None = None


class ComparedJob(Response):
    """Results of one of the jobs."""

    id: str
    name: str | None = None
    suffix: str | None = None
    state: str
    step: int
    device: str | None = None
    """Device of the newest attempt, from its report."""
    health: JobHealth | None = None
    evaluation: EvaluationSummary | None = None
    training_file: ComparedData
    validation_file: ComparedData | None = None
    results: dict[str, MetricResult] = Field(default_factory=dict)
    """Results of `train_loss`, `valid_loss`, `reward` and `valid_reward`, if the job has them."""


class AlignedCurve(Response):
    """Curve of a job over the common axis."""

    job_id: str
    x: list[float]
    """Steps, trained tokens, or hours since the first start of the job, by `axis`."""
    values: list[float | None]
    """Six significant figures; null means NaN."""


class JobComparison(Response):
    """Comparison of two to eight jobs. All lists are in the order of the request."""

    object: Literal["fine_tuning.comparison"] = "fine_tuning.comparison"
    jobs: list[ComparedJob]
    settings: dict[str, list[Any]]
    """Settings in which the jobs differ, by dotted name: model, method, files, recipe,
    hyperparameters, grader, seed."""
    automatic: dict[str, list[Any]]
    """Values that `"auto"` became, in which the jobs differ; null for a job without a report."""
    axis: Axis
    curves: dict[str, list[AlignedCurve]]
    """Curves by metric; a job without the metric, or without positions on the axis, is missing."""
