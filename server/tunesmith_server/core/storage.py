"""Storage of file contents and adapters by sha256, in a local directory or an object store.

Parts of open uploads are stored under `parts/`. Credentials and endpoint of an object store come
from its usual environment variables (AWS_*). This module never lists the store, because other
programs may use the store too. Only the rows of `blobs` show which objects are ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, NamedTuple

from obstore.exceptions import BaseError

from .bucket_store import BucketStore
from .local_store import LocalStore, hash_of, pieces_of

__all__ = ["BLOB_GRACE", "Storage", "StorageUnavailable", "hash_of"]

_PROBE = "tunesmith-check"
_INSTALLATION = "tunesmith-installation"
BLOB_GRACE = timedelta(days=1)
"""Minimum age of content that garbage collection deletes; newer content may still wait for its
database row."""


class StorageUnavailable(Exception):
    """The store refused a request or did not answer."""


class Disk(NamedTuple):
    """Size and free space of a disk in bytes."""

    total: int
    free: int


class Storage:
    """Store for blobs and for the parts of uploads. The name of a blob is its sha256
    (`ab/abcd...`), the name of a part is its id. A finished write survives a power cut. Writing the
    same content twice is harmless."""

    def __init__(self, url: str) -> None:
        self.url = url
        is_local = url.startswith("file://")
        self._store: LocalStore | BucketStore = LocalStore(url) if is_local else BucketStore(url)

    @property
    def is_local(self) -> bool:
        """True if the store is a local directory."""
        return isinstance(self._store, LocalStore)

    def disk(self) -> Disk | None:
        """Return the disk of a local directory; None for a bucket, or if reading its size fails."""
        if not isinstance(self._store, LocalStore):
            return None
        try:
            return Disk(*self._store.disk())
        except OSError:
            return None

    def check(self) -> None:
        """Raise StorageUnavailable if a test write to the store fails."""
        with self._translated_errors():
            self._store.write(_PROBE, [b"test write\n"])
            self._store.delete([_PROBE])

    def put(self, content: IO[bytes], sha256: str) -> None:
        """Store `content`, read from its start, unless the blob is already stored and intact."""
        if not self.is_good(sha256, content.seek(0, os.SEEK_END)):
            with self._translated_errors():
                self._store.write(_path(sha256), pieces_of(content))

    def put_pieces(self, pieces: Iterable[bytes], sha256: str) -> None:
        """Store content that arrives in pieces."""
        with self._translated_errors(missing_is_no_bucket=False):
            self._store.write(_path(sha256), pieces)

    def is_good(self, sha256: str, size: int) -> bool:
        """Return True if the blob is durably stored with this content."""
        with self._translated_errors():
            return self._store.is_good(_path(sha256), sha256, size)

    def put_part(self, content: IO[bytes], part_id: str) -> None:
        with self._translated_errors():
            self._store.write(_path(part_id), pieces_of(content))

    def stream_part(self, part_id: str) -> Iterator[bytes]:
        """Return the part's bytes in pieces. Raises FileNotFoundError if the part is missing."""
        with self._translated_errors(missing_is_no_bucket=False):
            return self._store.read(_path(part_id))

    def delete_part(self, part_id: str) -> None:
        """Delete a part. A missing part causes no error."""
        self._store.delete([_path(part_id)])

    def stream(self, sha256: str, start: int, end: int) -> Iterator[bytes]:
        """Return bytes [start, end) in pieces. Raises FileNotFoundError if the blob is missing."""
        if start == end:
            return iter(())
        with self._translated_errors(missing_is_no_bucket=False):
            return self._store.read(_path(sha256), start, end)

    def size(self, name: str) -> int | None:
        """Return the size of a blob or part in bytes, or None if it is missing."""
        with self._translated_errors():
            return self._store.size(_path(name))

    def link(self, sha256: str, seconds: int) -> str | None:
        """Return a presigned download URL of the blob; None if the store cannot sign."""
        if isinstance(self._store, LocalStore):
            return None
        with self._translated_errors():
            return self._store.link(_path(sha256), seconds)

    def delete(self, names: list[str]) -> None:
        """Delete blobs and parts. Missing objects cause no error."""
        with self._translated_errors():
            self._store.delete([_path(name) for name in names])

    def delete_unfinished(self, before: float) -> None:
        """Delete the files of unfinished writes that are older than `before` (Unix seconds)."""
        with self._translated_errors():
            self._store.delete_unfinished(before)

    def installation_id(self) -> str | None:
        """Return the id of the installation that the store belongs to."""
        try:
            with self._translated_errors(missing_is_no_bucket=False):
                return b"".join(self._store.read(_INSTALLATION)).decode().strip()
        except FileNotFoundError:
            return None

    def set_installation_id(self, installation: str, *, replace: bool = False) -> None:
        """Write the installation id; without `replace`, an existing id stays."""
        content = f"{installation}\n".encode()
        with self._translated_errors():
            if replace:
                self._store.write(_INSTALLATION, [content])
            else:
                self._store.write_new(_INSTALLATION, content)

    @contextmanager
    def _translated_errors(self, missing_is_no_bucket: bool = True) -> Iterator[None]:
        """Convert the store's errors to StorageUnavailable.

        `missing_is_no_bucket`: True if a FileNotFoundError can only mean that the bucket does not
        exist.
        """
        try:
            yield
        except FileNotFoundError as error:
            if not missing_is_no_bucket:
                raise
            raise StorageUnavailable(f"{self.url}: {_first_line(error)}") from error
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{self.url}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _path(name: str) -> str:
    """Return the path of a blob (its name is a sha256) or of a part (its name is an id)."""
    return f"parts/{name}" if name.startswith("part-") else f"{name[:2]}/{name}"
