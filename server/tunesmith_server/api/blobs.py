"""Writing of content to the store. The database row of the content is committed before the content
is written."""

from __future__ import annotations

from typing import IO

from tunesmith_server.services import blobs

from .deps import State


def announce(state: State, name: str, size: int) -> None:
    """Commit the database row of content before the content is written. Due to this row, garbage
    collection finds the content even if the write is interrupted."""
    with state.database.write.begin() as session:
        blobs.announce(session, name, size)


def store(state: State, content: IO[bytes], sha256: str, size: int) -> None:
    """Store content durably. After `store`, the caller must insert a row that refers to the
    content."""
    announce(state, sha256, size)
    state.storage.put(content, sha256)
