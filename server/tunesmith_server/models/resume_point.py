"""What a job can go on from: full-state checkpoints in storage."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Double, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class ResumePointRow(Base):
    __tablename__ = "resume_points"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Optimiser steps done."""
    created_at: Mapped[float] = mapped_column(Double)
    stays: Mapped[bool] = mapped_column(Boolean, default=False)
    """`recipe.keep_every` names its step."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """StoredFile, by name."""
