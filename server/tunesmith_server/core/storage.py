"""Storage of file contents and adapters by sha256, on disk or S3 (obstore).

Parts of open uploads are stored under `parts/`. The store's usual environment variables (AWS_*) set
its credentials and endpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore import open_writer
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store, from_url

_CLIENT: Any = {  # Any: obstore's TypedDicts exist for type checkers only
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=60),
    # obstore's default ends every transfer after 30 s.
    "timeout": timedelta(days=1),
    # Allow http:// endpoints without an extra variable.
    "allow_http": True,
}
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_PROBE = "0" * 64
BLOB_GRACE = timedelta(days=1)
"""Minimum age of content that a sweep deletes; newer content may still wait for its database
row."""


class StorageUnavailable(Exception):
    """The store refused a request or did not answer."""


_PIECE = 1024 * 1024
_CHUNK = 5 * _PIECE
"""Bytes per request to the store; S3 allows no less."""
_CHUNKS = 4
"""Number of parallel requests in one upload."""


class Storage:
    """Blobs that are named by their sha256 (`ab/abcd...`). Writing the same content twice is
    harmless."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: ObjectStore = (
            from_url(url, mkdir=True)
            if url.startswith("file://")
            else from_url(url, client_options=_CLIENT, retry_config=_RETRIES)
        )
        self._folder = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None

    def check(self) -> None:
        """Raise StorageUnavailable if a test write to the store fails."""
        self.put(BytesIO(), _PROBE)
        self._store.delete(_path(_PROBE))

    def put(self, content: IO[bytes], sha256: str) -> None:
        """Store `content`, read from its start. An existing blob is written again, which resets its
        age."""
        content.seek(0)
        with self._translated_errors():
            self._store.put(_path(sha256), content, chunk_size=_CHUNK, max_concurrency=_CHUNKS)

    def put_pieces(self, pieces: Iterable[bytes], sha256: str) -> None:
        """Store content that arrives in pieces."""
        # Not `put`: obstore would request pieces inside its own runtime, where fetching them fails.
        # Not `with writer`: after an error, it would store the truncated content.
        with self._translated_errors(missing_is_no_bucket=False):
            writer = open_writer(
                self._store, _path(sha256), buffer_size=_CHUNK, max_concurrency=_CHUNKS
            )
            for piece in pieces:
                writer.write(piece)
            writer.close()

    def put_part(self, content: IO[bytes], part_id: str) -> None:
        content.seek(0)
        path = _part_path(part_id)
        with self._translated_errors():
            self._store.put(path, content, chunk_size=_CHUNK, max_concurrency=_CHUNKS)

    def stream_part(self, part_id: str) -> Iterator[bytes]:
        """Return the part's bytes in pieces. Raises FileNotFoundError if the part is missing."""
        with self._translated_errors(missing_is_no_bucket=False):
            result = self._store.get(_part_path(part_id))
        return (bytes(piece) for piece in result.stream(min_chunk_size=_PIECE))

    def delete_part(self, part_id: str) -> None:
        """Delete a part; a missing part is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._store.delete(_part_path(part_id))

    def stream(self, sha256: str, start: int, end: int) -> Iterator[bytes]:
        """Return bytes [start, end) in pieces. Raises FileNotFoundError if the blob is missing."""
        if start == end:
            return iter(())
        with self._translated_errors(missing_is_no_bucket=False):
            result = self._store.get(_path(sha256), options={"range": (start, end)})
        return (bytes(piece) for piece in result.stream(min_chunk_size=_PIECE))

    def size(self, sha256: str) -> int | None:
        """Return the size of a blob in bytes, or None if the blob is missing."""
        try:
            with self._translated_errors(missing_is_no_bucket=False):
                size: int = self._store.head(_path(sha256))["size"]
        except FileNotFoundError:
            return None
        return size

    def has_fresh(self, sha256: str, younger_than: timedelta) -> bool:
        """Return True if the blob exists and is newer than `younger_than`."""
        try:
            with self._translated_errors(missing_is_no_bucket=False):
                written: datetime = self._store.head(_path(sha256))["last_modified"]
        except FileNotFoundError:
            return False
        return written > datetime.now(UTC) - younger_than

    def link(self, sha256: str, seconds: int) -> str | None:
        """Return a presigned download URL of the blob; None if the store cannot sign."""
        if not isinstance(self._store, S3Store | GCSStore | AzureStore):
            return None
        with self._translated_errors():
            return obstore.sign(self._store, "GET", _path(sha256), timedelta(seconds=seconds))

    @contextmanager
    def _translated_errors(self, missing_is_no_bucket: bool = True) -> Iterator[None]:
        """Convert the store's errors to StorageUnavailable. A FileNotFoundError from a write means
        that the bucket is missing."""
        try:
            yield
        except FileNotFoundError as error:
            if not missing_is_no_bucket:
                raise
            raise StorageUnavailable(f"{self._url}: {_first_line(error)}") from error
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{self._url}: {_first_line(error)}") from error

    def sweep(self, in_use: set[str], older_than: timedelta) -> int:
        """Delete unreferenced blobs and parts older than `older_than`; return their number.

        `in_use` has the sha256 of each blob in use and the id of each part in use.
        """
        limit = datetime.now(UTC) - older_than
        expired = [
            meta["path"]
            for batch in self._store.list()
            for meta in batch
            if meta["last_modified"] < limit and meta["path"].rsplit("/", 1)[-1] not in in_use
        ]
        if expired:
            self._store.delete(expired)
        for path in self._folder.glob("*/*#*") if self._folder else ():
            # `list` omits obstore's staging files, which remain if a process is killed.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < limit.timestamp():
                    path.unlink()
        return len(expired)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _path(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"


def _part_path(part_id: str) -> str:
    return f"parts/{part_id}"


def hash_of(content: IO[bytes]) -> tuple[str, int]:
    """Return sha256 and size of a file object, read from its start in pieces."""
    content.seek(0)
    digest, size = hashlib.sha256(), 0
    while piece := content.read(_PIECE):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size
