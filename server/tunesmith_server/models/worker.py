"""Workers that said they are there. Readiness looks here; job state never does."""

from __future__ import annotations

from sqlalchemy import JSON, Double, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class WorkerRow(Base):
    __tablename__ = "workers"

    worker_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    queue: Mapped[str] = mapped_column(String(16))
    host: Mapped[str] = mapped_column(String(255))
    device: Mapped[str] = mapped_column(String(255))
    version: Mapped[str] = mapped_column(String(32))
    models: Mapped[list[str]] = mapped_column(JSON)
    """Base models its host has."""
    not_ready: Mapped[str | None] = mapped_column(String(500))
    """Why it takes no job; null: it does."""
    last_seen: Mapped[float] = mapped_column(Double)
    """By the database's clock."""
