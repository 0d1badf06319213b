"""Tables of uploads in parts. The parts stay in storage until the upload is closed."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base

from .owned import Owned


class UploadRow(Owned, Base):
    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    expires_at: Mapped[float] = mapped_column(Double, index=True)
    status: Mapped[str] = mapped_column(String(16))
    """State of the upload. After `expires_at`, a `pending` upload counts as expired even before the
    janitor updates this column."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    filename: Mapped[str] = mapped_column(String(255))
    mime_type: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    file_seconds: Mapped[int | None] = mapped_column(Integer)
    """Lifetime of the completed file in seconds; null means no expiry."""
    part_ids: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Ids of the parts in the request that completed the upload. If a later request has the same
    ids, it is a repetition and gets the same answer."""
    file_id: Mapped[str | None] = mapped_column(String(40))


class UploadPartRow(Base):
    __tablename__ = "upload_parts"
    __table_args__ = (UniqueConstraint("upload_id", "sha256"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id"))
    created_at: Mapped[float] = mapped_column(Double)
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
