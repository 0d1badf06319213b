"""Rows that a database session adds, changes and deletes, for the audit log."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python
from sqlalchemy import event, inspect
from sqlalchemy.orm import Session, UOWTransaction

from tunesmith_server.core.database import Base

from .audit import AuditRow
from .event import EventRow

_CHANGES = "changes"
"""Key under which `session.info` has the session's changes."""
_NOT_SHOWN = {"sha256", "request_key", "recipe", "hyperparameters", "method", "files", "labels"}
"""Columns that the audit log leaves out, because they contain hashes of keys or large documents."""
_MAX_TEXT = 500

Values = dict[str, Any]  # Any: JSON


class Changes:
    """Changed rows of one transaction."""

    def __init__(self) -> None:
        self.before: list[Values] = []
        self.after: list[Values] = []


def watch(session: Session) -> Changes:
    """Record the rows that `session` changes from now on."""
    changes = session.info[_CHANGES] = Changes()
    return changes


@event.listens_for(Session, "before_flush")
def _note(session: Session, context: UOWTransaction, objects: object) -> None:
    changes: Changes | None = session.info.get(_CHANGES)
    if changes is None:
        return
    for row in session.new:
        if not isinstance(row, AuditRow | EventRow):
            changes.after.append(_identity(row) | _shown(row, inspect(row).dict))
    for row in session.deleted:
        changes.before.append(_identity(row) | _shown(row, inspect(row).dict))
    for row in session.dirty:
        old, new = _difference(row)
        if new:
            changes.before.append(_identity(row) | old)
            changes.after.append(_identity(row) | new)


def _identity(row: Base) -> Values:
    keys = inspect(type(row)).primary_key
    return {"table": row.__tablename__, **{key.name: getattr(row, key.name) for key in keys}}


def _difference(row: Base) -> tuple[Values, Values]:
    old: Values = {}
    new: Values = {}
    for attribute in inspect(row).attrs:
        history = attribute.history
        if history.added and attribute.key not in _NOT_SHOWN:
            old[attribute.key] = history.deleted[0] if history.deleted else None
            new[attribute.key] = history.added[0]
    return _shown(row, old), _shown(row, new)


def _shown(row: Base, values: Values) -> Values:
    columns = inspect(type(row)).column_attrs.keys()
    shown = {
        key: values[key]
        for key in columns
        if key in values and key not in _NOT_SHOWN and values[key] is not None
    }
    plain: Values = to_jsonable_python(shown, fallback=str)
    return {
        key: value[:_MAX_TEXT] if isinstance(value, str) else value for key, value in plain.items()
    }
