"""Table of API keys. Only the hash is stored; the key is shown once."""

from __future__ import annotations

from sqlalchemy import JSON, Double, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base

from .owned import DEFAULT_PROJECT


class ApiKeyRow(Base):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    prefix: Mapped[str] = mapped_column(String(16))
    """First characters of the key, so that users can distinguish keys."""
    created_at: Mapped[float] = mapped_column(Double)
    revoked_at: Mapped[float | None] = mapped_column(Double)
    project_id: Mapped[str] = mapped_column(String(40), index=True, server_default=DEFAULT_PROJECT)
    """Project to which the key gives access.

    An admin key gives access to every project. If a request with an admin key names no project, the
    request uses this project.
    """
    role: Mapped[str] = mapped_column(String(16), server_default="lead")
    """Role of the key: `viewer`, `member`, `lead` or `admin`. A user's key never has more rights
    than the user. Keys of earlier releases have the role `lead`, because they could do everything
    with files, jobs and models."""
    user_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """User whose key this is; null for the key of a service."""
    verbs: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Verbs (rights) that the key is limited to; null means all verbs of its role."""
    expires_at: Mapped[float | None] = mapped_column(Double)
    last_used_at: Mapped[float | None] = mapped_column(Double)
    """Time of the last request; the stored value may be a minute old."""
    requests_per_minute: Mapped[int | None] = mapped_column(Integer)
    """Rate limit of the key; null means TUNESMITH_REQUESTS_PER_MINUTE."""
    max_running_jobs: Mapped[int | None] = mapped_column(Integer)
    max_queued_jobs: Mapped[int | None] = mapped_column(Integer)
    max_device_hours: Mapped[float | None] = mapped_column(Double)
    """Limit of device-hours in 30 days for jobs created with this key."""
