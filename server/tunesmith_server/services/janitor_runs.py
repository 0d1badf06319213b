"""Record of the janitor's last runs. The janitors of all API processes share one row, so that each
process can show the runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tunesmith_schema import JanitorStatus
from tunesmith_server.models import JanitorRow

_MOST_CHARACTERS = 200


@dataclass
class Run:
    """A run of the janitor: a round of repairs, or a sweep that deletes unused content."""

    kind: Literal["round", "sweep"]
    started_at: float = field(default_factory=time.time)
    objects: int = 0
    """Number of stored objects that the run deleted."""
    bytes: int = 0
    """Size of these objects."""
    error: str | None = None

    @property
    def is_notable(self) -> bool:
        """True if the run deleted something or failed."""
        return bool(self.objects or self.error)

    def failed(self, step: str, error: Exception) -> None:
        """Store a step's error. The message of the exception is left out, because it may contain
        paths of the host."""
        self.error = f"could not {step}: {type(error).__name__}"[:_MOST_CHARACTERS]


def store(session: Session, run: Run, seconds: float, next_sweep_at: float) -> None:
    """Store the end of a run. If the run deleted nothing, the row keeps the values of the last
    deletion. If the run had no error, the row keeps the error of an earlier run."""
    values: dict[str, Any] = {  # Any: column values
        f"{run.kind}_at": run.started_at,
        f"{run.kind}_seconds": seconds,
        "next_sweep_at": next_sweep_at,
    }
    now = run.started_at + seconds
    if run.objects:
        values |= {
            "removed_at": now,
            "removed_objects": run.objects,
            "removed_bytes": run.bytes,
        }
    if run.error:
        values |= {"error": run.error, "error_at": now}
    insert: Any = sqlite.insert  # Any: no common base class has on_conflict_do_update
    if session.get_bind().dialect.name == "postgresql":
        insert = postgresql.insert
    statement = insert(JanitorRow).values(key=1, **values)
    session.execute(statement.on_conflict_do_update(index_elements=["key"], set_=values))


def status(session: Session, every_seconds: float) -> JanitorStatus:
    """Return the last runs. `every_seconds`: time between two rounds."""
    row = session.get(JanitorRow, 1) or JanitorRow()
    return JanitorStatus(
        round_at=_whole(row.round_at),
        round_seconds=row.round_seconds,
        every_seconds=every_seconds,
        sweep_at=_whole(row.sweep_at),
        sweep_seconds=row.sweep_seconds,
        next_sweep_at=_whole(row.next_sweep_at),
        removed_at=_whole(row.removed_at),
        removed_objects=row.removed_objects or 0,
        removed_bytes=row.removed_bytes or 0,
        error=row.error,
        error_at=_whole(row.error_at),
    )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
