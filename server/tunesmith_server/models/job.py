"""Table of fine-tuning jobs; only this table defines the state of a job."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Double, Index, Integer, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_schema.documents import DOCUMENT_VERSION
from tunesmith_server.core.database import Base

from .owned import Owned


class JobRow(Owned, Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_queue", "state", "queued_at"),
        # Running and waiting jobs of a key, for its limits.
        Index("ix_jobs_owner", "owner", "state"),
        # The order of lists, and the columns that lists are filtered by.
        Index(
            "ix_jobs_list",
            *("project_id", "created_at", "id", "state", "method_name", "model", "suffix"),
            *("fine_tuned_model", "finished_at"),
        ),
        # Forks and retries of a job, newest first.
        Index("ix_jobs_forks", "forked_from", "created_at", "id"),
        Index("ix_jobs_retries", "retry_of", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    state: Mapped[str] = mapped_column(String(20))
    phase: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Double)
    queued_at: Mapped[float | None] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    """Time of the first claim."""
    finished_at: Mapped[float | None] = mapped_column(Double)
    owner: Mapped[str] = mapped_column(String(40))
    """Id of the API key that created the job."""

    model: Mapped[str] = mapped_column(String(512))
    base_adapter_id: Mapped[str | None] = mapped_column(String(40))
    """Id of the base model's weights if an earlier job trained the base model, else null."""
    training_file: Mapped[str] = mapped_column(String(40), index=True)
    validation_file: Mapped[str | None] = mapped_column(String(40), index=True)
    suffix: Mapped[str | None] = mapped_column(String(64))
    seed: Mapped[int] = mapped_column(BigInteger)
    labels: Mapped[dict[str, str] | None] = mapped_column("metadata", JSON(none_as_null=True))
    """Value of `metadata` in the API; SQLAlchemy reserves the name `metadata`."""
    name: Mapped[str | None] = mapped_column(String(200))
    notes: Mapped[str | None] = mapped_column(Text)
    pinned: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    document_version: Mapped[int] = mapped_column(Integer, default=DOCUMENT_VERSION)
    """Version of `recipe`, `hyperparameters` and `method`; see tunesmith_schema/documents.py."""
    recipe: Mapped[dict[str, Any]] = mapped_column(JSON)
    hyperparameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    method: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    method_name: Mapped[str] = mapped_column(String(16), default="supervised")
    """Value of `type` in `method`. Lists of jobs are filtered by this column."""

    cancel_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    stop_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    """True if the job must end at the next step and keep the result."""
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    """Number of claims so far."""
    losses: Mapped[int] = mapped_column(Integer, default=0)
    """Number of failed attempts. An attempt that ends because the worker releases the job, for
    example at a pause, is not counted."""
    failures: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    """One object per failed attempt: `attempt`, `at` (Unix seconds) and JobFailure's fields."""
    not_before: Mapped[float | None] = mapped_column(Double)
    """Earliest time of the next claim, Unix seconds of the database clock."""
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    """Fencing token: only a worker with the newest token may write."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_until: Mapped[float | None] = mapped_column(Double)
    """End of the lease, Unix seconds of the database clock."""
    woken_at: Mapped[float] = mapped_column(Double, default=0.0)
    """Time of the last message that told a worker to claim waiting work, including this job."""

    last_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    """Highest event number of the job."""
    source_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    """Highest stored event number from the current attempt's events.jsonl."""
    step: Mapped[int] = mapped_column(Integer, default=0)
    total_steps: Mapped[int | None] = mapped_column(Integer)
    trained_tokens: Mapped[int | None] = mapped_column(BigInteger)
    fine_tuned_model: Mapped[str | None] = mapped_column(String(255))
    adapter_id: Mapped[str | None] = mapped_column(String(40))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    last_metrics: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Last values of `train_loss`, `valid_loss`, `reward` and `valid_reward`."""
    health: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Health of the run (JobHealth) as JSON; null before the first metrics."""
    curve: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Small curve of the main metric (JobCurve) as JSON; stored together with `health`."""
    sealed_step: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    """The metrics of all steps below this step are also stored in packed chunks
    (services/results/curve_chunks.py)."""
    evaluation: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """EvaluationSummary as JSON; the whole evaluation is part of the run report."""

    forked_from: Mapped[str | None] = mapped_column(String(40))
    """Job whose resume point this job starts from."""
    forked_step: Mapped[int | None] = mapped_column(Integer)
    retry_of: Mapped[str | None] = mapped_column(String(40))
    """Failed or cancelled job that this job retries."""

    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    """Priority among the jobs of a project: higher values are claimed first."""
    interactive: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    """True for an interactive job: a short job that is claimed first."""
    worker_labels: Mapped[str | None] = mapped_column(String(2000))
    """Labels that a worker must have, as one text made by `scheduling.eligibility.packed`."""
    needs_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Device memory in bytes that the job needs: the requested memory, or the predicted peak memory
    of an attempt if that is higher."""
    claimed_at: Mapped[float | None] = mapped_column(Double)
    """Time of the newest claim, Unix seconds of the database clock."""
    claimed_step: Mapped[int | None] = mapped_column(Integer)
    """Value of `step` at the newest claim, or the step from which the attempt continued."""
    measured_at: Mapped[float | None] = mapped_column(Double)
    """Time from which the speed of the current attempt is measured, Unix seconds of the database
    clock: usually the time of the first report of a step, because the start-up ends before it."""
    measured_step: Mapped[int | None] = mapped_column(Integer)
    """Value of `step` at `measured_at`."""
    charged_until: Mapped[float | None] = mapped_column(Double)
    """Time up to which the device-time of the current attempt is charged to the project; null
    without a lease."""
    device_seconds: Mapped[float] = mapped_column(Double, default=0.0, server_default="0")
    """Device-time of the ended attempts in seconds. The column includes time whose work was lost
    when an attempt failed."""
    yield_reason: Mapped[str | None] = mapped_column(String(300))
    """Reason why the worker must save a resume point and free its device; null if the job may
    continue."""
    preempted_at: Mapped[float | None] = mapped_column(Double)
    """Time of the last pre-emption, Unix seconds of the database clock."""


# The order in which the jobs of a project are claimed (scheduling/order.py), and the columns that
# show whether a job fits a worker. The size of labels is bounded, because PostgreSQL bounds the
# size of index entries.
Index(
    "ix_jobs_claim",
    *(JobRow.project_id, JobRow.state, JobRow.interactive.desc(), JobRow.priority.desc()),
    *(JobRow.created_at, JobRow.id, JobRow.needs_bytes, JobRow.worker_labels),
)
