"""Table of users. The roles of users in projects are in the table `project_members`."""

from __future__ import annotations

from sqlalchemy import Double, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class UserRow(Base):
    __tablename__ = "users"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    email: Mapped[str] = mapped_column(String(254), unique=True)
    name: Mapped[str] = mapped_column(String(120))
    role: Mapped[str] = mapped_column(String(16))
    """Role of the user. An `admin` may do everything; a `member` has only the rights of its roles
    in projects."""
    created_at: Mapped[float] = mapped_column(Double)
