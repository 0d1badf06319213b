"""Tables of stored content and of the installation that owns the store."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class BlobRow(Base):
    """Object that this installation wrote, or is about to write, to the store."""

    __tablename__ = "blobs"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    """sha256 of the content, or id of an upload's part."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(Double)
    last_used_at: Mapped[float] = mapped_column(Double, index=True)
    """Database time of the last use of the object: a write to the store, or a new row that refers
    to the object."""
    stored_at: Mapped[float | None] = mapped_column(Double)
    """Time at which a writer last confirmed that the whole content is stored; null until then."""
    deleting_at: Mapped[float | None] = mapped_column(Double)
    """Time when a garbage collection decided to delete the object."""


class InstallationRow(Base):
    """Table with a single row, which has the installation id; the store must have the same id."""

    __tablename__ = "installation"

    key: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, default=1)
    id: Mapped[str] = mapped_column(String(40))
    created_at: Mapped[float] = mapped_column(Double)
