"""What reinforcement jobs drew: the step's file in storage, which holds the texts."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class SamplesRow(Base):
    __tablename__ = "job_samples"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Of a later attempt, the same step's replace them."""
    created_at: Mapped[float] = mapped_column(Double)
    count: Mapped[int] = mapped_column(Integer)
    """Samples in the file, at least one: a page is found without reading it."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    """Of the file as it is stored."""
    sha256: Mapped[str] = mapped_column(String(64))
    """JSON lines, gzip."""
