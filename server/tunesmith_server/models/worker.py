"""Table of workers that have reported to the API. The table is used for readiness checks, and to
choose the jobs that each worker gets. The table does not determine the state of jobs."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Double, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class WorkerRow(Base):
    __tablename__ = "workers"

    worker_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    queue: Mapped[str] = mapped_column(String(16))
    host: Mapped[str] = mapped_column(String(255))
    device: Mapped[str] = mapped_column(String(255))
    version: Mapped[str] = mapped_column(String(32))
    models: Mapped[list[str]] = mapped_column(JSON)
    """Names of the base models on the worker's host."""
    not_ready: Mapped[str | None] = mapped_column(String(500))
    """Reason why the worker accepts no job; null if it accepts jobs."""
    last_seen: Mapped[float] = mapped_column(Double)
    """Time of the worker's last report, Unix seconds of the database clock."""
    first_seen: Mapped[float | None] = mapped_column(Double)
    """Time of the worker's first report."""
    labels: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """Labels that jobs may ask for, for example `gpu: h100`."""
    device_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Memory of the worker's device in bytes; null if unknown."""
