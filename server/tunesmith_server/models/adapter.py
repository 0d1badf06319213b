"""Tables of adapters (or full weights) and of the checkpoints that refer to them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base

from .owned import Owned


class AdapterRow(Owned, Base):
    __tablename__ = "adapters"
    __table_args__ = (Index("ix_adapters_list", "project_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    model: Mapped[str] = mapped_column(String(255), unique=True)
    """Model name."""
    base_model: Mapped[str] = mapped_column(String(512))
    kind: Mapped[str] = mapped_column(String(8))
    step: Mapped[int] = mapped_column(Integer)
    bytes: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Names, sizes and hashes of the files (StoredFile as JSON), sorted by name."""


class CheckpointRow(Owned, Base):
    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("job_id", "step"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    step: Mapped[int] = mapped_column(Integer)
    model: Mapped[str] = mapped_column(String(255))
    """Model name."""
    metrics: Mapped[dict[str, Any]] = mapped_column(JSON)
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapters.id"))
