"""Objects in S3 and other object stores, through obstore.

The store guarantees that a finished write is durable, and checks the transfer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import obstore
from obstore import open_writer
from obstore.exceptions import AlreadyExistsError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store, from_url

from .local_store import PIECE, READ_PIECE

_CLIENT: Any = {  # Any: obstore's TypedDicts exist for type checkers only
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=60),
    # obstore's default ends every transfer after 30 s.
    "timeout": timedelta(days=1),
    # Allow http:// endpoints without an extra variable.
    "allow_http": True,
}
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_CHUNK = 5 * PIECE
"""Bytes per request of an upload. The parts of an upload to S3 must have at least this size."""
_CHUNKS = 4


class BucketStore:
    """Store of objects below one URL; a path names each object."""

    def __init__(self, url: str) -> None:
        self._store: ObjectStore = from_url(url, client_options=_CLIENT, retry_config=_RETRIES)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write an object completely or not at all."""
        # Not `put`: obstore would request pieces inside its own runtime, where fetching them fails.
        # Not `with writer`: after an error, it would store the truncated content.
        writer = open_writer(self._store, path, buffer_size=_CHUNK, max_concurrency=_CHUNKS)
        for piece in pieces:
            writer.write(piece)
        writer.close()

    def write_new(self, path: str, content: bytes) -> bool:
        """Write an object; return False if it exists."""
        try:
            self._store.put(path, content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def is_good(self, path: str, sha256: str, size: int) -> bool:
        """Return True if the object exists in the bucket and has this size.

        The content is not read again, because an object store detects damaged objects itself.
        """
        return self.size(path) == size

    def read(self, path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Return bytes [start, end) in pieces. Raises FileNotFoundError if the object is
        missing."""
        options: Any = {} if end is None else {"range": (start, end)}  # Any: obstore's TypedDict
        result = self._store.get(path, options=options)
        return (bytes(piece) for piece in result.stream(min_chunk_size=READ_PIECE))

    def size(self, path: str) -> int | None:
        try:
            size: int = self._store.head(path)["size"]
        except FileNotFoundError:
            return None
        return size

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Missing objects cause no error."""
        if listed := list(paths):
            with contextlib.suppress(FileNotFoundError):
                # Some stores that speak S3 lack the request that deletes several objects.
                self._store.delete(listed if len(listed) > 1 else listed[0])

    def delete_unfinished(self, before: float) -> None:
        """Do nothing, because an unfinished write creates no object.

        A lifecycle rule of the bucket ends unfinished multipart uploads.
        """

    def link(self, path: str, seconds: int) -> str | None:
        """Return a presigned download URL; None if the store cannot sign."""
        if not isinstance(self._store, S3Store | GCSStore | AzureStore):
            return None
        return obstore.sign(self._store, "GET", path, timedelta(seconds=seconds))
