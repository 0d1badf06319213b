"""Table of the janitor's last runs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class JanitorRow(Base):
    """Table with a single row, which the janitors of all API processes overwrite."""

    __tablename__ = "janitor"

    key: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, default=1)
    round_at: Mapped[float | None] = mapped_column(Double)
    """Start of the last recorded round of repairs."""
    round_seconds: Mapped[float | None] = mapped_column(Double)
    sweep_at: Mapped[float | None] = mapped_column(Double)
    """Start of the last sweep."""
    sweep_seconds: Mapped[float | None] = mapped_column(Double)
    next_sweep_at: Mapped[float | None] = mapped_column(Double)
    removed_at: Mapped[float | None] = mapped_column(Double)
    """Time when the janitor last deleted stored objects."""
    removed_objects: Mapped[int | None] = mapped_column(Integer)
    removed_bytes: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[str | None] = mapped_column(String(200))
    """Last error: the step and the type of the exception."""
    error_at: Mapped[float | None] = mapped_column(Double)
