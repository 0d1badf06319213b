"""Fine-tuning jobs: the truth about who may do what with them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Double, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_queue", "state", "queued_at"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    state: Mapped[str] = mapped_column(String(20))
    phase: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Double, index=True)
    queued_at: Mapped[float | None] = mapped_column(Double)
    finished_at: Mapped[float | None] = mapped_column(Double)
    owner: Mapped[str] = mapped_column(String(40))
    """Id of the API key that created it."""
    body_sha256: Mapped[str] = mapped_column(String(64))
    """Of the create body: a client's retry without a key is recognised by it."""

    model: Mapped[str] = mapped_column(String(512))
    base_adapter_id: Mapped[str | None] = mapped_column(String(40))
    """The weights it starts from, when the base model was trained here."""
    training_file: Mapped[str] = mapped_column(String(40), index=True)
    validation_file: Mapped[str | None] = mapped_column(String(40), index=True)
    suffix: Mapped[str | None] = mapped_column(String(64))
    seed: Mapped[int] = mapped_column(BigInteger)
    labels: Mapped[dict[str, str] | None] = mapped_column("metadata", JSON(none_as_null=True))
    """`metadata` on the wire; SQLAlchemy keeps that name for itself."""
    recipe: Mapped[dict[str, Any]] = mapped_column(JSON)
    hyperparameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    method: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))

    cancel_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    stop_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    """End at the next step and keep what there is. A pause is the state `pausing`."""
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    """Claims so far."""
    losses: Mapped[int] = mapped_column(Integer, default=0)
    """Attempts that ended badly; a release is not one."""
    failures: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    """Why each of them ended: `attempt`, `at` (Unix seconds) and JobFailure's fields."""
    not_before: Mapped[float | None] = mapped_column(Double)
    """Not to be claimed earlier, by the database's clock."""
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    """Fencing token: only who quotes the newest one may write."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_until: Mapped[float | None] = mapped_column(Double)
    """By the database's clock."""
    woken_at: Mapped[float] = mapped_column(Double, default=0.0)
    """When a wake-up was last sent for it."""

    last_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    """Highest event number."""
    source_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    """Highest number of this attempt's events.jsonl that is stored."""
    step: Mapped[int] = mapped_column(Integer, default=0)
    total_steps: Mapped[int | None] = mapped_column(Integer)
    trained_tokens: Mapped[int | None] = mapped_column(BigInteger)
    fine_tuned_model: Mapped[str | None] = mapped_column(String(255))
    adapter_id: Mapped[str | None] = mapped_column(String(40))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))

    forked_from: Mapped[str | None] = mapped_column(String(40))
    """The job whose resume point it starts from."""
    forked_step: Mapped[int | None] = mapped_column(Integer)
    retry_of: Mapped[str | None] = mapped_column(String(40), index=True, unique=True)
    """The job that failed or was cancelled and that this one takes up; at most one does."""
