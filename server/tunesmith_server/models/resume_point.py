"""Table of resume points: full-state checkpoints in storage from which a job can continue."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Double, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class ResumePointRow(Base):
    __tablename__ = "resume_points"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Number of completed optimiser steps."""
    created_at: Mapped[float] = mapped_column(Double)
    stays: Mapped[bool] = mapped_column(Boolean, default=False)
    """True if `recipe.keep_every` keeps this step."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Names, sizes and hashes of the files (StoredFile as JSON), sorted by name."""
