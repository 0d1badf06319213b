"""Table of workers' credentials; it does not show which workers are alive."""

from __future__ import annotations

from sqlalchemy import Double, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class WorkerCredentialRow(Base):
    __tablename__ = "worker_credentials"

    worker_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    queue: Mapped[str] = mapped_column(String(16))
    """Queue of the worker: `train` (jobs and evaluations) or `light` (validation of files). The
    queue determines what the worker may read."""
    secret_sha256: Mapped[str] = mapped_column(String(64))
    """sha256 of the worker's secret. The worker generates the secret, and sends only this hash when
    it enrolls."""
    enrolled_at: Mapped[float] = mapped_column(Double, index=True)
    """Time of the newest enrollment, Unix seconds of the database clock."""
