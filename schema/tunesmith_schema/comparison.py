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
    """Last value; null means NaN."""
    best: float | None = None
    """Lowest loss, or highest reward; null if all values are NaN."""
    best_step: int | None = None


class ComparedData(Response):
    """Data file of a job."""

    id: str
    filename: str | None = None
    """Name of the file; null if the file was deleted."""
    sha256: str | None = None
    """sha256 of the content, equal for files with equal contents; null if the file was deleted."""
    rows: int | None = None


class ComparedJob(Response):
    """Results of one of the compared jobs."""

    id: str
    name: str | None = None
    suffix: str | None = None
    state: str
    step: int
    device: str | None = None
    """Device of the newest attempt, from the report of this attempt."""
    health: JobHealth | None = None
    evaluation: EvaluationSummary | None = None
    training_file: ComparedData
    validation_file: ComparedData | None = None
    results: dict[str, MetricResult] = Field(default_factory=dict)
    """Results of `train_loss`, `valid_loss`, `reward` and `valid_reward`, if the job has them."""


class AlignedCurve(Response):
    """Curve of one job. The curves of all jobs have the same axis."""

    job_id: str
    x: list[float]
    """Positions of the values: steps, trained tokens, or hours since the job's first start (see
    `axis`)."""
    values: list[float | None]
    """Values of the metric with six significant figures; null means NaN."""


class JobComparison(Response):
    """Comparison of two to eight jobs. All lists are in the order of the request."""

    object: Literal["fine_tuning.comparison"] = "fine_tuning.comparison"
    jobs: list[ComparedJob]
    settings: dict[str, list[Any]]
    """Settings in which the jobs differ: model, method, files, recipe, hyperparameters, grader,
    seed. The keys are dotted names such as `lora.r`."""
    automatic: dict[str, list[Any]]
    """Values that were chosen for `"auto"` and differ between the jobs. The keys are dotted names.
    The value of a job without a report is null."""
    environment: dict[str, list[Any]] = Field(default_factory=dict)
    """Device, host and library versions of the newest attempt, if they differ between the jobs;
    null for a job without a report. The keys are dotted names such as `versions.torch`."""
    axis: Axis
    curves: dict[str, list[AlignedCurve]]
    """Curves by metric. A job without values of the metric, or without values of `axis` (such as
    trained tokens), is left out."""
