"""Tables of job events and of metrics."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, Integer, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base

from .owned import Owned

NO_METRICS = text("kind <> 'metrics'")
"""SQL condition of the index that contains all events except metrics.

SQLite uses the index only for queries that contain the text of the condition.
"""
NO_INFO = text("level <> 'info'")
"""SQL condition of the index that contains only warnings and errors.

SQLite uses the index only for queries that contain the text of the condition.
"""


class EventRow(Owned, Base):
    __tablename__ = "job_events"
    __table_args__ = tuple(
        Index(name, "job_id", "seq", sqlite_where=condition, postgresql_where=condition)
        for name, condition in (
            ("ix_job_events_told", NO_METRICS), ("ix_job_events_warned", NO_INFO)
        )
    )  # fmt: skip

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Event number from 1. Events become visible in the order of their numbers. A reader that asks
    for the events after a number therefore misses no event."""
    created_at: Mapped[float] = mapped_column(Double)
    attempt: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(16))
    level: Mapped[str] = mapped_column(String(8))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)


class MetricRow(Base):
    __tablename__ = "job_metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[float | None] = mapped_column(Double)
    """Value of the metric; null means NaN. A later attempt that repeats the step overwrites the
    value."""
