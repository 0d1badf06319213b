"""Stored content as a file object."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from io import BufferedReader, RawIOBase
from typing import Any

from .local_store import READ_PIECE
from .storage import Storage


def open_stored(storage: Storage, sha256: str, start: int, end: int) -> BufferedReader:
    """Open bytes [start, end) of a blob. The caller closes the result. Raises FileNotFoundError if
    the blob is missing."""
    return BufferedReader(_Pieces(storage.stream(sha256, start, end)), READ_PIECE)


class _Pieces(RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces, self._rest = pieces, b""

    def close(self) -> None:
        if isinstance(self._pieces, Generator):
            self._pieces.close()  # otherwise it stays open until garbage collection
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # Any: a writable buffer
        self._rest = self._rest or next(self._pieces, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
