"""Table of evaluations on demand and of stored results of lm-eval."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Double, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base

from .owned import Owned


class EvaluationRow(Owned, Base):
    __tablename__ = "evaluations"
    __table_args__ = (Index("ix_evaluations_queue", "status", "created_at"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Double, index=True)
    started_at: Mapped[float | None] = mapped_column(Double)
    finished_at: Mapped[float | None] = mapped_column(Double)
    owner: Mapped[str] = mapped_column(String(40))
    """Id of the API key that created the evaluation."""
    model: Mapped[str] = mapped_column(String(512))
    against: Mapped[str | None] = mapped_column(String(512))
    file: Mapped[str | None] = mapped_column(String(40), index=True)
    filename: Mapped[str | None] = mapped_column(String(255))
    grader: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """JobFailure as JSON."""
    verdict: Mapped[str | None] = mapped_column(String(1000))
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Evaluation as JSON."""
    task_results: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    fence: Mapped[int] = mapped_column(Integer, default=0)
    """Number of claims so far. Only the worker with the newest claim may write."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_until: Mapped[float | None] = mapped_column(Double)
    """End of the lease, Unix seconds of the database clock."""
    losses: Mapped[int] = mapped_column(Integer, default=0)
    """Number of claims that ended because the worker, or its evaluation process, was killed."""
    woken_at: Mapped[float] = mapped_column(Double, default=0.0)
    """Time of the last message that told a worker to claim waiting work, including this
    evaluation."""
    request_key: Mapped[str | None] = mapped_column(String(64), unique=True)
    """SHA-256 of the caller and of the request's Idempotency-Key; null without an
    Idempotency-Key."""
    request_sha256: Mapped[str | None] = mapped_column(String(64))
    """SHA-256 of the request; null without an Idempotency-Key."""
