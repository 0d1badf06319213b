"""A file that says its writer lives: locked for as long as the process, or one it forked, does.

The kernel lets go of the lock (flock) however the process ends; containers that share a volume see
each other's. Knows nothing of the content.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class LockedFile:
    """Ours from `create` until `close`, or the process's end."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self._file = path, file

    @classmethod
    def create(cls, path: Path, content: str) -> LockedFile:
        """Nobody sees it unlocked: it gets its name once the lock is held."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        file = part.open("w+", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        locked = cls(path, file)
        locked.write(content)
        part.replace(path)
        return locked

    def write(self, content: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(content)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        if remove:
            self.path.unlink(missing_ok=True)
        _unlock(self._file)


@contextmanager
def abandoned(path: Path) -> Iterator[str | None]:
    """What a dead process left, locked meanwhile; None: its writer lives, or it is gone."""
    try:
        file = path.open("r+", encoding="utf-8")
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another may have dealt with it between the two lines above.
        same = path.exists() and os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
        yield file.read() if same else None
    except BlockingIOError:
        yield None
    finally:
        _unlock(file)


def is_held(path: Path) -> bool:
    """Whether the process that wrote it lives."""
    with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _unlock(file: IO[str]) -> None:
    # Not by closing alone: a process that was forked meanwhile has the lock as well.
    fcntl.flock(file, fcntl.LOCK_UN)
    file.close()
