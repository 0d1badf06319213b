"""State and progress of one job, as the stream of many jobs sends them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Response


class JobProgress(Response):
    """The fields of a job that change while the job waits and runs."""

    id: str
    object: Literal["fine_tuning.job.progress"] = "fine_tuning.job.progress"
    state: str
    """State of the job, or `deleted`."""
    phase: str | None = None
    attempt: int = 0
    step: int = 0
    total_steps: int | None = None
    last_metrics: dict[str, float | None] = Field(default_factory=dict)
    """Last values of `train_loss`, `valid_loss`, `reward` and `valid_reward`; null means NaN."""
    estimated_finish: int | None = None
    """Expected end of a running job, Unix seconds."""
    finished_at: int | None = None
    worker_id: str | None = None
    """Name of the worker that holds the job."""
    name: str | None = None
    pinned: bool = False
    last_seq: int = 0
    """Number of the job's newest event."""
