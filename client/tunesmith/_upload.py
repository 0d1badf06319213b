"""What `file=` may be, made into something httpx streams. Knows nothing of the API."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from ._errors import InvalidArgumentError

FileSource = str | os.PathLike[str] | tuple[str, bytes] | IO[bytes]


class _OneShot:
    """A pipe or the like. Only `read`: httpx would believe the size 0 that fstat gives for it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.started = False

    def read(self, size: int = -1) -> bytes:
        self.started = True
        return self._stream.read(size)


@dataclass(frozen=True, kw_only=True)
class Upload:
    filename: str
    content: IO[bytes]

    def can_repeat(self) -> bool:
        """Whether all of it can still be sent (again)."""
        return not (isinstance(self.content, _OneShot) and self.content.started)


@contextmanager
def opened(source: FileSource) -> Iterator[Upload]:
    """Closes what it opened itself, never the caller's stream."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        with path.open("rb") as stream:
            yield Upload(filename=path.name, content=stream)
    elif isinstance(source, tuple):
        name, content = source
        yield Upload(filename=name, content=io.BytesIO(content))
    else:
        yield _of_stream(source)


def _of_stream(stream: IO[bytes]) -> Upload:
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
    return Upload(filename=filename, content=content)
