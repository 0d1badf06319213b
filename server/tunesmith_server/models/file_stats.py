"""Table of statistics about the rows of data sets. The worker that validates a file sends the
statistics with its result."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from tunesmith_server.core.database import Base


class FileStatsRow(Base):
    __tablename__ = "file_stats"

    file_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("files.id", ondelete="CASCADE"), primary_key=True
    )
    stats: Mapped[dict[str, Any]] = mapped_column(JSON)
    """FileStats as JSON."""
    row_hashes: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    """Hashes of the rows in file order, eight bytes per row; null if the file has too many rows."""
