"""File contents and adapters by sha256, on disk or S3 (obstore). Knows nothing of their meaning.

Parts of uploads that are still arriving lie beside them, under `parts/`. Credentials and endpoint
of a store come from the variables that its own tools read (AWS_*).
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
    # By default a transfer is cut after 30 s, however well it goes.
    "timeout": timedelta(days=1),
    # Whoever names an endpoint as http:// wants it: no second variable that says so again.
    "allow_http": True,
}
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_CHECK = "0" * 64
BLOB_GRACE = timedelta(days=1)
"""What is younger is not swept: it may be about to be referred to."""


class StorageUnavailable(Exception):
    """The store refused, or did not answer."""


_PIECE = 1024 * 1024
_CHUNK = 5 * _PIECE
"""What goes to the store at once (S3 takes no smaller ones), and how many of them side by side."""
_CHUNKS = 4


class Storage:
    """Content-addressed blobs at `ab/abcd...`. Writing the same content twice is harmless."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: ObjectStore = (
            from_url(url, mkdir=True)
            if url.startswith("file://")
            else from_url(url, client_options=_CLIENT, retry_config=_RETRIES)
        )
        self._folder = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None

    def check(self) -> None:
        """Raises StorageUnavailable when nothing can be written here."""
        self.put(BytesIO(), _CHECK)
        self._store.delete(_path(_CHECK))

    def put(self, content: IO[bytes], sha256: str) -> None:
        """Store `content`, read from its start. Always writes, so that its age starts anew."""
        content.seek(0)
        with self._answering():
            self._store.put(_path(sha256), content, chunk_size=_CHUNK, max_concurrency=_CHUNKS)

    def put_pieces(self, pieces: Iterable[bytes], sha256: str) -> None:
        """`put` for content that is nowhere in one place."""
        # A writer, since `put` pulls pieces inside its own runtime, where none can be fetched.
        # Not a context manager: leaving that closes it, and what was cut off would be stored.
        with self._answering(missing_is_ours=False):
            writer = open_writer(
                self._store, _path(sha256), buffer_size=_CHUNK, max_concurrency=_CHUNKS
            )
            for piece in pieces:
                writer.write(piece)
            writer.close()

    def put_part(self, content: IO[bytes], part_id: str) -> None:
        content.seek(0)
        path = _part_path(part_id)
        with self._answering():
            self._store.put(path, content, chunk_size=_CHUNK, max_concurrency=_CHUNKS)

    def stream_part(self, part_id: str) -> Iterator[bytes]:
        """Raises FileNotFoundError when the part is gone."""
        with self._answering(missing_is_ours=False):
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
        with self._answering(missing_is_ours=False):
            result = self._store.get(_path(sha256), options={"range": (start, end)})
        return (bytes(piece) for piece in result.stream(min_chunk_size=_PIECE))

    def size(self, sha256: str) -> int | None:
        """Bytes of a blob; None when it is not here."""
        try:
            with self._answering(missing_is_ours=False):
                size: int = self._store.head(_path(sha256))["size"]
        except FileNotFoundError:
            return None
        return size

    def has_fresh(self, sha256: str, younger_than: timedelta) -> bool:
        """Whether the blob is here and was written lately: `sweep` leaves it alone for a while."""
        try:
            with self._answering(missing_is_ours=False):
                written: datetime = self._store.head(_path(sha256))["last_modified"]
        except FileNotFoundError:
            return False
        return written > datetime.now(UTC) - younger_than

    def link(self, sha256: str, seconds: int) -> str | None:
        """A presigned URL that gives the blob to whoever has it; None: this store cannot sign."""
        if not isinstance(self._store, S3Store | GCSStore | AzureStore):
            return None
        with self._answering():
            return obstore.sign(self._store, "GET", _path(sha256), timedelta(seconds=seconds))

    @contextmanager
    def _answering(self, missing_is_ours: bool = True) -> Iterator[None]:
        """The store's own errors as ours. A write that finds nothing found no bucket."""
        try:
            yield
        except FileNotFoundError as error:
            if not missing_is_ours:
                raise
            raise StorageUnavailable(f"{self._url}: {_first_line(error)}") from error
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{self._url}: {_first_line(error)}") from error

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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


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
