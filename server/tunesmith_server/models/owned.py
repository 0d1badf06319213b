"""Ownership: each file, job, model and other object of users belongs to one project."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

DEFAULT_PROJECT = "proj-default"
"""Id of the project that exists from the first start. Rows of earlier releases belong to this
project."""


class Owned:
    """Mixin of tables whose rows belong to a project. The database session of a user's request sees
    only rows of the request's project; see models/scope.py."""

    project_id: Mapped[str] = mapped_column(String(40), server_default=DEFAULT_PROJECT)
    """Project of the row. The column is no foreign key, because SQLite could add a foreign key only
    by copying the table. Projects are never deleted, so the id stays valid."""
