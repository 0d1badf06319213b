"""Table of run reports: the newest report of each attempt."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Double, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class ReportRow(Base):
    __tablename__ = "job_reports"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    updated_at: Mapped[float] = mapped_column(Double)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    """RunReport as JSON; a later report of the same attempt replaces it."""
