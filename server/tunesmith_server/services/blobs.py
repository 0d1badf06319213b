"""Rows of stored content. The rows tell which objects in the store belong to this service, which
objects are in use, and which objects may be deleted.

Content is written in three steps: `announce` commits a row for the content; the store writes the
object; `use` marks the content as stored, in the transaction that adds a reference to the content.
A garbage collection marks a row with `deleting_at` before it deletes the object, so that no writer
assumes that the object is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, StoredFile
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import Unavailable
from tunesmith_server.models import (
    AdapterRow,
    BlobRow,
    FileRow,
    ResumePointRow,
    SamplesRow,
    UploadPartRow,
)

_ABANDONED_SECONDS = 300.0
"""Seconds after which a started deletion counts as crashed.

A garbage collection that is alive stops its deletions before this time.
"""
_BATCH = 500


def announce(session: Session, name: str, size: int) -> None:
    """Record content that is about to be written. Commit before writing the content."""
    _upsert(session, {name: size}, stored=False)


def use(session: Session, sizes: dict[str, int]) -> None:
    """Record that content is stored, in the transaction that adds a row referring to the content.

    `sizes`: size of each content in bytes; the keys are the names of the contents.
    """
    _upsert(session, sizes, stored=True)


def use_files(session: Session, files: Iterable[StoredFile]) -> None:
    """Record that the files of a report are stored; see `use`."""
    use(session, {file.sha256: file.bytes for file in files})


def _upsert(session: Session, sizes: dict[str, int], *, stored: bool) -> None:
    insert: Any = sqlite.insert  # Any: no common base class has on_conflict_do_update
    if session.get_bind().dialect.name == "postgresql":
        insert = postgresql.insert
    names = sorted(sizes)  # concurrent transactions lock shared rows in one order
    for first in range(0, len(names), _BATCH):
        batch = names[first : first + _BATCH]
        values = [
            {
                "name": name,
                "bytes": sizes[name],
                "created_at": epoch_now(),
                "last_used_at": epoch_now(),
                "stored_at": epoch_now() if stored else None,
            }
            for name in batch
        ]
        statement = insert(BlobRow).values(values)
        kept = case((BlobRow.deleting_at.is_(None), BlobRow.stored_at))
        statement = statement.on_conflict_do_update(
            index_elements=["name"],
            set_={
                "bytes": statement.excluded.bytes,
                "last_used_at": epoch_now(),
                "stored_at": epoch_now() if stored else kept,
                "deleting_at": None,
            },
            where=_not_being_deleted(),
        ).returning(BlobRow.name)
        if len(session.scalars(statement).all()) < len(batch):
            raise Unavailable(
                ErrorCode.UNAVAILABLE, "this content is being deleted from the store",
                hint="repeat the request in a few seconds",
            )  # fmt: skip


def _not_being_deleted() -> ColumnElement[bool]:
    return or_(
        BlobRow.deleting_at.is_(None), BlobRow.deleting_at < epoch_now() - _ABANDONED_SECONDS
    )


def is_kept(session: Session, name: str, younger_than: timedelta) -> int | None:
    """Return the size of content that is stored and will not be deleted soon; otherwise None."""
    return session.scalar(
        select(BlobRow.bytes).where(
            BlobRow.name == name,
            BlobRow.stored_at.is_not(None),
            BlobRow.deleting_at.is_(None),
            BlobRow.last_used_at > epoch_now() - younger_than.total_seconds(),
        )
    )


def unreferenced(session: Session, older_than: timedelta) -> dict[str, int]:
    """Return the contents that no row refers to and that were not used recently. The keys are
    names, the values are sizes in bytes."""
    in_use = set(_references(session))
    old = session.execute(select(BlobRow.name, BlobRow.bytes).where(*_expired(older_than)))
    return {name: size for name, size in old if name not in in_use}


def _expired(older_than: timedelta) -> tuple[ColumnElement[bool], ...]:
    limit = epoch_now() - older_than.total_seconds()
    return BlobRow.last_used_at < limit, _not_being_deleted()


def _references(session: Session) -> Iterator[str]:
    yield from session.scalars(select(FileRow.sha256))
    yield from session.scalars(select(SamplesRow.sha256))
    yield from session.scalars(select(UploadPartRow.id))
    for files in (AdapterRow.files, ResumePointRow.files):
        for stored in session.scalars(select(files).execution_options(yield_per=200)):
            yield from (file["sha256"] for file in stored)


def start_deleting(session: Session, names: list[str], older_than: timedelta) -> dict[str, float]:
    """Mark contents for deletion, and return the time of each mark. Content that was used in the
    meantime is not marked, because its `last_used_at` is too new.
    """
    marked = session.execute(
        update(BlobRow)
        .where(BlobRow.name.in_(names), *_expired(older_than))
        .values(deleting_at=epoch_now())
        .returning(BlobRow.name, BlobRow.deleting_at),
        execution_options={"synchronize_session": False},
    )
    return {name: mark for name, mark in marked if mark is not None}


def finish_deleting(session: Session, marks: dict[str, float]) -> None:
    """Delete the rows of deleted objects, unless a writer uses the content again."""
    first, last = min(marks.values()), max(marks.values())
    session.execute(
        delete(BlobRow).where(
            BlobRow.name.in_(list(marks)), BlobRow.deleting_at.between(first, last)
        ),
        execution_options={"synchronize_session": False},
    )


def forget(session: Session, names: list[str]) -> None:
    """Delete the rows of deleted objects."""
    session.execute(delete(BlobRow).where(BlobRow.name.in_(names)))


def newest(session: Session, limit: int) -> list[str]:
    """Return the names of content in use, most recently used first."""
    return list(
        session.scalars(
            select(BlobRow.name)
            .where(BlobRow.deleting_at.is_(None))
            .order_by(BlobRow.last_used_at.desc(), BlobRow.name)
            .limit(limit)
        )
    )


def count(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(BlobRow)) or 0
