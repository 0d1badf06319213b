"""Table of links that show a job without a sign-in. Only the hash of a link's secret is stored."""

from __future__ import annotations

from sqlalchemy import Double, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base

from .owned import Owned


class JobLinkRow(Owned, Base):
    __tablename__ = "job_links"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    key_id: Mapped[str] = mapped_column(String(40))
    """API key that created the link. The link stops working when the key is revoked or expires."""
    created_at: Mapped[float] = mapped_column(Double)
    expires_at: Mapped[float] = mapped_column(Double, index=True)
