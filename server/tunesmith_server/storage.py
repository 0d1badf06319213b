"""File contents and adapters by sha256, on disk or S3 (obstore). Knows nothing of their meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import IO

from obstore.store import ObjectStore, from_url


class Storage:
    """Content-addressed blobs at `ab/abcd...`. Writing the same content twice is harmless."""

    def __init__(self, url: str) -> None:
        self._store: ObjectStore = (
            from_url(url, mkdir=True) if url.startswith("file://") else from_url(url)
        )

    def put(self, content: IO[bytes], sha256: str) -> None:
        """Store `content`, read from its start. Always writes, so that its age starts anew."""
        content.seek(0)
        self._store.put(_path(sha256), content)

    def stream(self, sha256: str, start: int, end: int) -> Iterator[bytes]:
        """Bytes [start, end) in pieces. Raises FileNotFoundError when the blob is gone."""
        if start == end:
            return iter(())
        result = self._store.get(_path(sha256), options={"range": (start, end)})
        return (bytes(piece) for piece in result.stream(min_chunk_size=1024 * 1024))

    def size(self, sha256: str) -> int | None:
        """Bytes of a blob; None when it is not here."""
        try:
            size: int = self._store.head(_path(sha256))["size"]
        except FileNotFoundError:
            return None
        return size

    def sweep(self, in_use: set[str], older_than: timedelta) -> int:
        """Delete blobs nobody refers to, once they are old enough; gives how many."""
        limit = datetime.now(UTC) - older_than
        doomed = [
            meta["path"]
            for batch in self._store.list()
            for meta in batch
            if meta["last_modified"] < limit and meta["path"].rsplit("/", 1)[-1] not in in_use
        ]
        if doomed:
            self._store.delete(doomed)
        return len(doomed)


def _path(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"


def hash_of(content: IO[bytes]) -> tuple[str, int]:
    """sha256 and size of a file object, read from its start in pieces."""
    content.seek(0)
    digest, size = hashlib.sha256(), 0
    while piece := content.read(1024 * 1024):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size
