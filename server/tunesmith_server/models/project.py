"""Tables of projects, of their members, and of the tuned models shared with them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class ProjectRow(Base):
    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    slug: Mapped[str | None] = mapped_column(String(32))
    """SLUG in the names of the project's tuned models (`ft:BASE:SLUG:...`); null means
    TUNESMITH_PROJECT."""
    created_at: Mapped[float] = mapped_column(Double)
    archived_at: Mapped[float | None] = mapped_column(Double)
    """Time at which the project was archived; since then, no key gives access to it."""
    max_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Quota of stored bytes; null means no quota."""
    base_models: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Base models that the project may use; null means all."""

    weight: Mapped[float] = mapped_column(Double, server_default="1")
    """Share of the devices, relative to the weights of other projects with waiting jobs."""
    guaranteed_devices: Mapped[int] = mapped_column(Integer, server_default="0")
    """Number of guaranteed devices. While the project uses fewer devices than this number, its jobs
    start before the jobs of projects that use all their guaranteed devices."""
    max_running_jobs: Mapped[int | None] = mapped_column(Integer)
    max_queued_jobs: Mapped[int | None] = mapped_column(Integer)
    max_device_hours: Mapped[float | None] = mapped_column(Double)
    """Limit of device-hours in 30 days.

    In this column and the two columns above, null means no limit.
    """
    usage_log: Mapped[float | None] = mapped_column(Double)
    """Logarithm of the project's usage, in which older device-time counts less
    (scheduling/usage.py); null before the first job."""


class ProjectMemberRow(Base):
    __tablename__ = "project_members"

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(String(16))
    """Role in the project: `viewer`, `member` or `lead`."""
    added_at: Mapped[float] = mapped_column(Double)


class ModelPermissionRow(Base):
    """Tuned model or checkpoint that another project may use."""

    __tablename__ = "model_permissions"
    __table_args__ = (UniqueConstraint("project_id", "model"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    model: Mapped[str] = mapped_column(String(255), index=True)
    """Model name."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
