"""Lists of the audit log's entries, for admins. services/audit.py writes and verifies the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Text, cast, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import AuditLogEntry
from tunesmith_server.models import AuditRow
from tunesmith_server.services.pages import PageBuilder, json_of, read_page
from tunesmith_server.services.paging import Order, number_in, unknown_cursor

_PREFIX = "audit-"


@dataclass(frozen=True, kw_only=True)
class AuditFilters:
    """Conditions that all listed entries meet."""

    project_id: str | None = None
    """Project of the request."""
    actor_id: str | None = None
    """Id of a key or of a user."""
    action: str | None = None
    """Text with which the action starts, such as `DELETE ` or `POST /organization`."""
    object_id: str | None = None
    """Id of an object in the request's path, or of a changed database row."""
    created_after: int | None = None
    """Earliest time, Unix seconds."""
    created_before: int | None = None
    """End of the time range, Unix seconds. Entries at this time are not included."""

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        if self.project_id:
            yield AuditRow.project_id == self.project_id
        if self.actor_id:
            yield or_(AuditRow.key_id == self.actor_id, AuditRow.user_id == self.actor_id)
        if self.action:
            yield AuditRow.action.startswith(self.action, autoescape=True)
        if self.object_id:
            documents = (AuditRow.target, AuditRow.before, AuditRow.after)
            texts = (cast(document, Text) for document in documents)
            yield or_(*(text.contains(f'"{self.object_id}"', autoescape=True) for text in texts))
        if self.created_after is not None:
            yield AuditRow.at >= self.created_after
        if self.created_before is not None:
            yield AuditRow.at < self.created_before


def list_entries(
    session: Session, filters: AuditFilters, *, after: str | None, limit: int, order: Order
) -> PageBuilder:
    cursor = None
    if after:
        seq = number_in(after.removeprefix(_PREFIX))
        if seq is None or session.get(AuditRow, seq) is None:
            raise unknown_cursor(after, "entry")
        cursor = (seq,)
    return read_page(
        session,
        select(AuditRow).where(*filters.conditions()),
        (AuditRow.seq.expression,),
        after=cursor,
        limit=limit,
        order=order,
        key_of=lambda row: (row[0].seq,),
        items_of=lambda rows: ((id_of(row), json_of(_to_wire(row))) for (row,) in rows),
    )


def id_of(row: AuditRow) -> str:
    return f"{_PREFIX}{row.seq}"


def _to_wire(row: AuditRow) -> AuditLogEntry:
    columns = {column.name: getattr(row, column.name) for column in AuditRow.__table__.columns}
    return AuditLogEntry(id=id_of(row), **columns)
