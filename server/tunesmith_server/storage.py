"""File contents and adapters by sha256, on disk or S3 (obstore). Knows nothing of their meaning.

Parts of uploads that are still arriving lie beside them, under `parts/`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from obstore import open_writer
from obstore.store import ObjectStore, from_url

_PIECE = 1024 * 1024
_CHUNK = 5 * _PIECE
"""What goes to the store at once (S3 takes no smaller ones), and how many of them side by side."""
_CHUNKS = 4


class Storage:
    """Content-addressed blobs at `ab/abcd...`. Writing the same content twice is harmless."""

    def __init__(self, url: str) -> None:
        self._store: ObjectStore = (
            from_url(url, mkdir=True) if url.startswith("file://") else from_url(url)
        )
        self._folder = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None

    def put(self, content: IO[bytes], sha256: str) -> None:
        """Store `content`, read from its start. Always writes, so that its age starts anew."""
        content.seek(0)
        self._store.put(_path(sha256), content, chunk_size=_CHUNK, max_concurrency=_CHUNKS)

    def put_pieces(self, pieces: Iterable[bytes], sha256: str) -> None:
        """`put` for content that is nowhere in one place."""
        # A writer, since `put` pulls pieces inside its own runtime, where none can be fetched.
        # Not a context manager: leaving that closes it, and what was cut off would be stored.
        writer = open_writer(
            self._store, _path(sha256), buffer_size=_CHUNK, max_concurrency=_CHUNKS
        )
        for piece in pieces:
            writer.write(piece)
        writer.close()

    def put_part(self, content: IO[bytes], part_id: str) -> None:
        content.seek(0)
        path = _part_path(part_id)
        self._store.put(path, content, chunk_size=_CHUNK, max_concurrency=_CHUNKS)

    def stream_part(self, part_id: str) -> Iterator[bytes]:
        """Raises FileNotFoundError when the part is gone."""
        result = self._store.get(_part_path(part_id))
        return (bytes(piece) for piece in result.stream(min_chunk_size=_PIECE))

    def delete_part(self, part_id: str) -> None:
        """Deleting what is gone already is harmless."""
        with contextlib.suppress(FileNotFoundError):
            self._store.delete(_part_path(part_id))

    def stream(self, sha256: str, start: int, end: int) -> Iterator[bytes]:
        """Bytes [start, end) in pieces. Raises FileNotFoundError when the blob is gone."""
        if start == end:
            return iter(())
        result = self._store.get(_path(sha256), options={"range": (start, end)})
        return (bytes(piece) for piece in result.stream(min_chunk_size=_PIECE))

    def size(self, sha256: str) -> int | None:
        """Bytes of a blob; None when it is not here."""
        try:
            size: int = self._store.head(_path(sha256))["size"]
        except FileNotFoundError:
            return None
        return size

    def sweep(self, in_use: set[str], older_than: timedelta) -> int:
        """Delete blobs and parts that nobody refers to, once they are old enough: how many.

        `in_use` holds last names: the sha256 of a blob, the id of a part.
        """
        limit = datetime.now(UTC) - older_than
        doomed = [
            meta["path"]
            for batch in self._store.list()
            for meta in batch
            if meta["last_modified"] < limit and meta["path"].rsplit("/", 1)[-1] not in in_use
        ]
        if doomed:
            self._store.delete(doomed)
        for path in self._folder.glob("*/*#*") if self._folder else ():
            # What a killed process was writing: obstore's staging names, which it does not list.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < limit.timestamp():
                    path.unlink()
        return len(doomed)


def _path(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"


def _part_path(part_id: str) -> str:
    return f"parts/{part_id}"


def hash_of(content: IO[bytes]) -> tuple[str, int]:
    """sha256 and size of a file object, read from its start in pieces."""
    content.seek(0)
    digest, size = hashlib.sha256(), 0
    while piece := content.read(_PIECE):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size
