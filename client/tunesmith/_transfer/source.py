"""Sources of an upload (a path, bytes or an open file), wrapped for streaming by httpx."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tunesmith._http.errors import InvalidArgumentError

FileSource = str | os.PathLike[str] | tuple[str, bytes] | IO[bytes]
Report = Callable[[int], None]
"""Callback that receives the number of bytes read so far."""

_CHUNK_BYTES = 1024 * 1024


class _OneShot:
    """Stream that cannot seek, such as a pipe. The class has no `fileno`, because httpx would use
    the size from fstat, which is 0 for a pipe."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.started = False

    def read(self, size: int = -1) -> bytes:
        self.started = True
        return self._stream.read(size)


class Slice:
    """Stream for httpx that reads `size` bytes of another stream, from position `start`.

    After each read, `report` receives the position in the whole stream. If httpx sends the part
    again, the positions start again at `start`.
    """

    def __init__(
        self, stream: IO[bytes], start: int, size: int, report: Report | None = None
    ) -> None:
        self._stream, self._start, self.size = stream, start, size
        self._report = report
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        remaining = self.size - self._position
        self._stream.seek(self._start + self._position)
        chunk = self._stream.read(remaining if size < 0 else min(size, remaining))
        self._position += len(chunk)
        if self._report is not None:
            self._report(self._start + self._position)
        return chunk

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position


@dataclass(frozen=True, kw_only=True)
class Source:
    """Content to upload, with its file name."""

    filename: str
    content: IO[bytes]
    path: Path | None = None
    """Path of the file if this module opened it; None for the caller's bytes or stream."""

    def size(self) -> int | None:
        """Return the total number of bytes, or None for a stream that cannot seek."""
        return None if isinstance(self.content, _OneShot) else self.content.seek(0, os.SEEK_END)

    def sha256(self) -> str | None:
        """Return the hexadecimal sha256 of the content, or None for a stream that cannot seek."""
        if isinstance(self.content, _OneShot):
            return None
        digest = hashlib.sha256()
        self.content.seek(0)
        while chunk := self.content.read(_CHUNK_BYTES):
            digest.update(chunk)
        return digest.hexdigest()

    def reporting(self, report: Report | None) -> IO[bytes]:
        """Return the whole content as a stream; `report` receives the number of bytes read."""
        size = self.size()
        if report is None or size is None:
            return self.content
        return cast(IO[bytes], Slice(self.content, 0, size, report))

    def can_repeat(self) -> bool:
        """Return False if the source is a stream that cannot seek, and a part of the stream has
        been sent."""
        return not (isinstance(self.content, _OneShot) and self.content.started)


@contextmanager
def open_source(source: FileSource) -> Iterator[Source]:
    """Open a source. A stream that the caller passed stays open afterwards."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        with path.open("rb") as stream:
            yield Source(filename=path.name, content=stream, path=path)
    elif isinstance(source, tuple):
        name, content = source
        yield Source(filename=name, content=io.BytesIO(content))
    else:
        yield _stream_source(source)


def _stream_source(stream: IO[bytes]) -> Source:
    if isinstance(stream, io.TextIOBase):
        raise InvalidArgumentError(
            "file is open in text mode", hint="open it in binary mode: open(path, 'rb')"
        )
    if not hasattr(stream, "read"):
        raise InvalidArgumentError(
            f"file has the type {type(stream).__name__} and no read()",
            hint="give a path, a (name, bytes) pair, or a file open in binary mode",
        )
    name = getattr(stream, "name", None)
    filename = os.path.basename(name) if isinstance(name, str) and name else "upload"
    seekable = hasattr(stream, "seekable") and stream.seekable()
    # httpx only calls `read`, but its types require all methods of IO.
    content = stream if seekable else cast(IO[bytes], _OneShot(stream))
    return Source(filename=filename, content=content)
