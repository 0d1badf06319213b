"""Table of uploaded files. The content is in storage under its sha256."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base

from .owned import Owned


class FileRow(Owned, Base):
    __tablename__ = "files"
    __table_args__ = (Index("ix_files_list", "project_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    expires_at: Mapped[float | None] = mapped_column(Double)
    filename: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    status: Mapped[str] = mapped_column(String(16))
    status_details: Mapped[str | None] = mapped_column(Text)
    validation: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    woken_at: Mapped[float] = mapped_column(Double, default=0.0)
    """Time of the last message that asked a worker to validate the file. The janitor repeats this
    message after 30 s."""
    readings: Mapped[int] = mapped_column(Integer, default=0)
    """Number of times that a worker was lost while it read and validated the file."""
    reader: Mapped[str | None] = mapped_column(String(128))
    """Id of the worker that reads and validates the file."""
    reading: Mapped[int] = mapped_column(Integer, default=0)
    """Number of claims of the file so far. Only the worker with the newest claim may report a
    result."""
    reading_until: Mapped[float | None] = mapped_column(Double)
    """End of the worker's lease, Unix seconds of the database clock; null if no worker reads the
    file."""
    request_key: Mapped[str | None] = mapped_column(String(64), index=True, unique=True)
    """SHA-256 of the API key, the project and the request's Idempotency-Key; null without an
    Idempotency-Key."""
