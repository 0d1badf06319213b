"""Tables with the device-time that jobs used on each day, and the time in which devices were idle
on each day."""

from __future__ import annotations

from sqlalchemy import Double, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class UsageRow(Base):
    """Device-time of ended attempts on one day; `day` is the number of days since 1970-01-01, in
    UTC."""

    __tablename__ = "usage_days"
    __table_args__ = (Index("ix_usage_days_owner", "owner", "day"),)

    project_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True)
    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Id of the API key that created the jobs."""
    model: Mapped[str] = mapped_column(String(512), primary_key=True)
    """Base model of the jobs."""
    device_seconds: Mapped[float] = mapped_column(Double)
    lost_seconds: Mapped[float] = mapped_column(Double)
    """Part of `device_seconds` whose work was lost, for example because an attempt failed. The
    project is not charged for lost seconds."""


class IdleRow(Base):
    """Time on one day in which a worker of one host was ready but had no job, summed over the
    workers of the host."""

    __tablename__ = "idle_days"

    day: Mapped[int] = mapped_column(Integer, primary_key=True)
    host: Mapped[str] = mapped_column(String(255), primary_key=True)
    seconds: Mapped[float] = mapped_column(Double)
