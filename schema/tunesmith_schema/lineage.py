"""Lineage of a job (its origin, forks, retries and results), and the job's self-check and resume
points."""

from __future__ import annotations

from typing import Literal

from .base import Response


class SelfCheckItem(Response):
    """Outcome of one check."""

    check: str
    """Name of the check."""
    state: str
    """Outcome of the check: `passed`, `failed`, `not_applicable` or `skipped`."""
    detail: str
    """Measured value, or the reason why the check did not run."""


class SelfCheck(Response):
    """Result of the self-check, which verifies before the first step of an attempt that training
    computes correct results."""

    object: Literal["fine_tuning.job.self_check"] = "fine_tuning.job.self_check"
    job_id: str
    attempt: int
    created_at: int
    """Time of the self-check, Unix seconds."""
    message: str
    seconds: float
    """Duration of the self-check in seconds."""
    checks: list[SelfCheckItem]
    """All checks, in the order in which they ran."""


class StoredResumePoint(Response):
    """Resume point from which a fork of the job can start."""

    id: str
    """Step number as text."""
    object: Literal["fine_tuning.job.resume_point"] = "fine_tuning.job.resume_point"
    step: int
    created_at: int
    bytes: int
    stays: bool
    """True if `recipe.keep_every` keeps the resume point after the end of the job."""


class RelatedJob(Response):
    """Job in a lineage."""

    id: str
    name: str | None = None
    suffix: str | None = None
    state: str
    step: int | None = None
    """Step of the resume point that the fork starts from; null for a retry."""


class RelatedModel(Response):
    """A tuned model: the result or a checkpoint of a job."""

    adapter_id: str
    model: str
    kind: str
    """Kind of weights: `lora` or `full`."""
    step: int


class JobLineage(Response):
    """Base model and data of a job, the earlier job from which it started, its forks and retries,
    and its results."""

    object: Literal["fine_tuning.job.lineage"] = "fine_tuning.job.lineage"
    job_id: str
    model: str
    """Name of the base model."""
    base_adapter_id: str | None = None
    """Id of the base model's weights, if Tunesmith trained the base model."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None = None
    """Id of the validation file, if the job has one."""
    forked_from: RelatedJob | None = None
    """Job that this job is a fork of; its `state` is `deleted` if the job was deleted."""
    retry_of: RelatedJob | None = None
    """Job that this job retries; its `state` is `deleted` if the job was deleted."""
    forks: list[RelatedJob]
    """Up to 100 forks, newest first."""
    retries: list[RelatedJob]
    """Up to 100 retries, newest first."""
    results: list[RelatedModel]
    """Up to 100 tuned models and checkpoints of this job, newest first."""
