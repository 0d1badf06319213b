"""Table of reservations: times in which a worker or host takes no jobs, or only jobs of one
project."""

from __future__ import annotations

from sqlalchemy import Double, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class ReservationRow(Base):
    __tablename__ = "reservations"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    worker: Mapped[str] = mapped_column(String(255), index=True)
    """Id of a worker, or name of a host."""
    project_id: Mapped[str | None] = mapped_column(String(40))
    """Project whose jobs the worker still takes; null for a drain, in which the worker takes no
    jobs."""
    starts_at: Mapped[float] = mapped_column(Double)
    """Start, Unix seconds of the database clock."""
    ends_at: Mapped[float | None] = mapped_column(Double, index=True)
    """End; null while the reservation has no end."""
    reason: Mapped[str] = mapped_column(String(200))
    created_by: Mapped[str] = mapped_column(String(40))
    """Id of the API key that made the reservation."""
