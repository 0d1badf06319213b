"""Audit log: entries are only appended.

Each entry contains the hash of the entry before it, so that a changed or missing entry is found.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunesmith_server.models import AuditRow
from tunesmith_server.models.changes import Changes

_FIRST = "0" * 64
_LOCK = 0x61756474
"""Id of a PostgreSQL advisory lock: only one transaction at a time appends. SQLite needs no lock,
because it has only one writer."""


@dataclass(kw_only=True)
class Entry:
    """Action that will be appended to the log."""

    action: str
    key_id: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    target: dict[str, Any] = field(default_factory=dict)
    address: str | None = None
    request_id: str | None = None
    recorded: bool = False
    """True once a transaction has appended the entry."""


def append(session: Session, entry: Entry, changes: Changes | None = None) -> AuditRow:
    """Append an entry in the transaction of the action. Call this function last, because no other
    transaction can append until the commit."""
    session.flush()  # completes `changes`
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    newest = select(AuditRow.seq, AuditRow.sha256).order_by(AuditRow.seq.desc()).limit(1)
    last = session.execute(newest).one_or_none()
    row = AuditRow(
        seq=1 + (last.seq if last else 0),
        at=time.time(),
        key_id=entry.key_id,
        user_id=entry.user_id,
        project_id=entry.project_id,
        action=entry.action,
        target=entry.target,
        address=entry.address,
        request_id=entry.request_id,
        before=_as_stored(changes.before if changes else []),
        after=_as_stored(changes.after if changes else []),
        previous=last.sha256 if last else _FIRST,
    )
    row.sha256 = digest(row)
    session.add(row)
    session.flush()
    entry.recorded = True
    return row


def _as_stored(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the values as the database returns them, for example null instead of NaN."""
    stored: list[dict[str, Any]] = from_json(to_json(values, inf_nan_mode="null"))
    return stored


def digest(row: AuditRow) -> str:
    """Return the sha256 of all columns except the hash itself."""
    columns = AuditRow.__table__.columns
    values = {column.name: getattr(row, column.name) for column in columns}
    del values["sha256"]
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a verification."""

    entries: int
    """Number of correct entries before the first wrong entry."""
    head: str
    """sha256 of the last correct entry."""
    problem: str | None
    """First problem; None if all entries are correct."""


def verify(session: Session, head: str | None = None) -> Verdict:
    """Check the number and the hash of every entry, and that the entry contains the hash of the
    entry before it. `head` is a hash that an earlier verification printed; if no entry has this
    hash, the end of the log was cut off."""
    count, previous, found = 0, _FIRST, head in (None, _FIRST)
    for row in entries(session):
        problem = None
        if row.seq != count + 1:
            problem = f"entry {count + 1} is missing"
        elif row.previous != previous:
            problem = f"entry {row.seq} does not follow entry {count}"
        elif digest(row) != row.sha256:
            problem = f"entry {row.seq} was changed"
        if problem:
            return Verdict(entries=count, head=previous, problem=problem)
        count, previous = row.seq, row.sha256
        found = found or previous == head
    problem = None if found else f"no entry has the hash {head}: the log was cut off"
    return Verdict(entries=count, head=previous, problem=problem)


def entries(session: Session, after: int = 0) -> Iterator[AuditRow]:
    """Yield the entries after number `after`, oldest first."""
    query = select(AuditRow).where(AuditRow.seq > after).order_by(AuditRow.seq)
    with session.scalars(query.execution_options(yield_per=500)) as rows:
        yield from rows
