"""Table of the audit log. The database refuses to change or delete rows of this table."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class AuditRow(Base):
    __tablename__ = "audit_log"

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Number of the entry, from 1 and without gaps."""
    at: Mapped[float] = mapped_column(Double)
    """Time of the entry, Unix seconds."""
    key_id: Mapped[str | None] = mapped_column(String(40))
    """API key of the caller; null for a command on the server's host."""
    user_id: Mapped[str | None] = mapped_column(String(40))
    project_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """Project of the request."""
    action: Mapped[str] = mapped_column(String(120))
    """Method and path of the route, such as `DELETE /files/{file_id}`, or a command."""
    target: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Ids in the request's path."""
    address: Mapped[str | None] = mapped_column(String(64))
    """IP address of the client."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    before: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Changed and deleted rows: their ids, and the values before the change."""
    after: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """New and changed rows: their ids, and the values after the change."""
    previous: Mapped[str] = mapped_column(String(64))
    """sha256 of the previous entry; 64 zeros for the first."""
    sha256: Mapped[str] = mapped_column(String(64))
    """sha256 of all other columns."""
