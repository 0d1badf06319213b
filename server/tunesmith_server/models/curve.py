"""Table of curves. One row has the values of one metric for a whole chunk of steps."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class CurveRow(Base):
    __tablename__ = "job_curves"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    void_by: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Number of the later attempt that repeated these steps; 0 if no attempt repeated them."""
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    start: Mapped[int] = mapped_column(Integer, primary_key=True)
    """First step of the chunk, a multiple of `curve_chunks.CHUNK`."""
    coarse: Mapped[bytes] = mapped_column(LargeBinary)
    """Minimum and maximum of each block of `curve_chunks.BLOCK` steps. The column comes before
    `fine`, so that SQLite can read it without reading `fine`."""
    fine: Mapped[bytes] = mapped_column(LargeBinary)
    """Values of all steps of the chunk."""
