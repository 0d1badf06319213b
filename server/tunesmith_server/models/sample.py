"""Table of samples (completions with their rewards) from reinforcement jobs; one stored file per
step holds the texts."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class SamplesRow(Base):
    __tablename__ = "job_samples"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Step of the samples. A later attempt that repeats the step replaces the row."""
    created_at: Mapped[float] = mapped_column(Double)
    count: Mapped[int] = mapped_column(Integer)
    """Number of samples in the file, at least one; paging uses this number instead of reading the
    file."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    """Size of the stored file in bytes."""
    sha256: Mapped[str] = mapped_column(String(64))
    """sha256 of the stored file, which has gzipped JSON lines."""
