"""Table of sign-ins to the portal. Only the hash of a session's secret is stored."""

from __future__ import annotations

from sqlalchemy import Double, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class SessionRow(Base):
    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    key_id: Mapped[str] = mapped_column(String(40), index=True)
    """API key whose rights the session has."""
    kind: Mapped[str] = mapped_column(String(16))
    """Kind of session. `browser`: session of a user who signed in; `display`: read-only session for
    an office screen; `link`: sign-in link that works once."""
    name: Mapped[str | None] = mapped_column(String(120))
    """Name of a display session."""
    created_at: Mapped[float] = mapped_column(Double)
    last_seen: Mapped[float] = mapped_column(Double)
    """Time of the last request; the stored value may be a minute old."""
    expires_at: Mapped[float] = mapped_column(Double, index=True)
    user_agent: Mapped[str | None] = mapped_column(String(200))
    """Name of the browser in its `User-Agent` header."""
