"""Garbage collection of the store: deletes content that table `blobs` lists and that no other row
refers to. This module never lists the store, which other programs may use too."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from tunesmith_server.core.database import Database
from tunesmith_server.core.storage import BLOB_GRACE, Storage
from tunesmith_server.services import blobs

from . import installation

_BATCH = 100
_MAX_MARKED_SECONDS = 60.0
"""Maximum seconds to mark content as "being deleted". If marking takes longer, the content is not
deleted now, because writers may use content again five minutes after it was marked."""


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """Content that no row refers to. `sizes` has the size in bytes of each content, by name."""

    sizes: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())


def find(database: Database, storage: Storage, older_than: timedelta = BLOB_GRACE) -> Garbage:
    """Return the content that `collect` would delete; write nothing."""
    if storage.installation_id() is not None:
        installation.ensure(database, storage)
    with database.read() as session:
        return Garbage(sizes=blobs.unreferenced(session, older_than))


def collect(database: Database, storage: Storage, older_than: timedelta = BLOB_GRACE) -> Garbage:
    """Delete the content that no row refers to, and return it.

    A crash at any point is harmless, because the next garbage collection deletes the remaining
    content.
    """
    installation.ensure(database, storage)
    found, deleted = find(database, storage, older_than).sizes, dict[str, int]()
    names = sorted(found)
    for first in range(0, len(names), _BATCH):
        started = time.monotonic()
        with database.write.begin() as session:
            marks = blobs.start_deleting(session, names[first : first + _BATCH], older_than)
        if not marks or time.monotonic() - started > _MAX_MARKED_SECONDS:
            continue
        storage.delete(list(marks))
        with database.write.begin() as session:
            blobs.finish_deleting(session, marks)
        deleted |= {name: found[name] for name in marks}
    storage.delete_unfinished(time.time() - older_than.total_seconds())
    return Garbage(sizes=deleted)
