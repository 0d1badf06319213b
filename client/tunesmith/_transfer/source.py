"""What `file=` may be, made into something httpx streams. Knows nothing of the API."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tunesmith._http.errors import InvalidArgumentError

FileSource = str | os.PathLike[str] | tuple[str, bytes] | IO[bytes]


class _OneShot:
    """A pipe or the like. Only `read`: httpx would believe the size 0 that fstat gives for it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.started = False

    def read(self, size: int = -1) -> bytes:
        self.started = True
        return self._stream.read(size)


class Slice:
    """`size` bytes of a stream from `start` on, as a stream of its own for httpx.

    `tell` hears where in the whole stream reading has got to; it goes back when a try is repeated.
    """

    def __init__(
        self, stream: IO[bytes], start: int, size: int, tell: Callable[[int], None] | None = None
    ) -> None:
        self._stream, self._start, self.size = stream, start, size
        self._tell = tell
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        left = self.size - self._at
        self._stream.seek(self._start + self._at)
        piece = self._stream.read(left if size < 0 else min(size, left))
        self._at += len(piece)
        if self._tell is not None:
            self._tell(self._start + self._at)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        return self._at


@dataclass(frozen=True, kw_only=True)
class Source:
    filename: str
    content: IO[bytes]
    path: Path | None = None
    """Where it lies, when that is known and nobody else reads from `content`."""

    def size(self) -> int | None:
        """All of it, in bytes; None for what can be read only once."""
        return None if isinstance(self.content, _OneShot) else self.content.seek(0, os.SEEK_END)

    def told(self, tell: Callable[[int], None] | None) -> IO[bytes]:
        """The whole content; `tell` hears how much of it has been read."""
        size = self.size()
        if tell is None or size is None:
            return self.content
        return cast(IO[bytes], Slice(self.content, 0, size, tell))

    def can_repeat(self) -> bool:
        """Whether all of it can still be sent (again)."""
        return not (isinstance(self.content, _OneShot) and self.content.started)


@contextmanager
def opened(source: FileSource) -> Iterator[Source]:
    """Closes what it opened itself, never the caller's stream."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        with path.open("rb") as stream:
            yield Source(filename=path.name, content=stream, path=path)
    elif isinstance(source, tuple):
        name, content = source
        yield Source(filename=name, content=io.BytesIO(content))
    else:
        yield _of_stream(source)


def _of_stream(stream: IO[bytes]) -> Source:
    if isinstance(stream, io.TextIOBase):
        raise InvalidArgumentError(
            "file is open in text mode", hint="open it in binary mode: open(path, 'rb')"
        )
    if not hasattr(stream, "read"):
        raise InvalidArgumentError(
            f"file is a {type(stream).__name__}, which cannot be read",
            hint="give a path, a (name, bytes) pair, or a file open in binary mode",
        )
    name = getattr(stream, "name", None)
    filename = os.path.basename(name) if isinstance(name, str) and name else "upload"
    seekable = hasattr(stream, "seekable") and stream.seekable()
    # httpx asks no more of a file than `read`, but its types name all of IO.
    content = stream if seekable else cast(IO[bytes], _OneShot(stream))
    return Source(filename=filename, content=content)
