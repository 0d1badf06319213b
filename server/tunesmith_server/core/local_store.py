"""Objects as files of a local directory that survive a power cut.

A call writes the file under a temporary name, syncs it, renames it and syncs the folder before the
call returns. obstore's own local store renames without a sync.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

PIECE = 1024 * 1024
READ_PIECE = 96 * 1024
"""Bytes per piece of a download. For a client that does not read, up to three pieces are in memory.
Pieces of 64 KiB need twice the CPU time."""
_OBJECT = r"(?:[0-9a-f]{64}|part-[0-9a-f]{24})"
_UNFINISHED = re.compile(rf"\.{_OBJECT}\.[0-9a-f]{{16}}\.part|{_OBJECT}#\d+")
"""Names of the temporary files of unfinished writes. The second form of the pattern is for files of
obstore, which earlier versions used."""


class LocalStore:
    """Store of files in one directory; a relative path names each file."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(
                f"{url} names the host {parts.netloc!r}: write file:///PATH with three slashes"
            )
        self._root = Path(unquote(parts.path))
        self._synced_folders: set[Path] = set()
        _make_folder(self._root)

    def disk(self) -> tuple[int, int]:
        """Return the size and the free bytes of the disk."""
        usage = shutil.disk_usage(self._root)
        return usage.total, usage.free

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write an object durably, and completely or not at all."""
        target = self._root / path
        with self._unfinished(target, pieces) as part:
            os.replace(part, target)
        _sync(target.parent)

    def write_new(self, path: str, content: bytes) -> bool:
        """Write an object durably; return False if it exists."""
        target = self._root / path
        with self._unfinished(target, [content]) as part:
            try:
                os.link(part, target)
            except FileExistsError:
                return False
            finally:
                os.unlink(part)
        _sync(target.parent)
        return True

    @contextlib.contextmanager
    def _unfinished(self, target: Path, pieces: Iterable[bytes]) -> Iterator[Path]:
        self._prepare_folder(target.parent)
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        try:
            with part.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            yield part
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def _prepare_folder(self, folder: Path) -> None:
        """Create the folder and sync its name, once per process. Each process syncs, because
        another process may have created the folder without syncing its name yet."""
        if folder not in self._synced_folders or not folder.is_dir():
            _make_folder(folder)
            _sync(folder.parent)
            self._synced_folders.add(folder)

    def is_good(self, path: str, sha256: str, size: int) -> bool:
        """Return True if the object has this content.

        This call also syncs the file and its folder, because another process may have written the
        object without syncing it yet.
        """
        target = self._root / path
        try:
            with target.open("rb") as file:
                if os.fstat(file.fileno()).st_size != size or hash_of(file)[0] != sha256:
                    return False
                os.fsync(file.fileno())
        except FileNotFoundError:
            return False
        self._prepare_folder(target.parent)
        _sync(target.parent)
        return True

    def read(self, path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Return bytes [start, end) in pieces. Raises FileNotFoundError if the object is
        missing."""
        pieces = _pieces((self._root / path).open("rb"), start, end)
        next(pieces)  # enter its `with`: a generator that never started cannot close the file
        return pieces

    def size(self, path: str) -> int | None:
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            return None

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects durably. Missing objects cause no error. The folders are synced.
        Otherwise, a power cut could bring back an object that has no database row any more, and
        nothing would delete it again."""
        targets = [self._root / path for path in paths]
        for target in targets:
            target.unlink(missing_ok=True)
        for folder in {target.parent for target in targets}:
            if folder.is_dir():
                _sync(folder)

    def delete_unfinished(self, before: float) -> None:
        """Delete the files of unfinished writes that are older than `before` (Unix seconds). Only
        files with the temporary names of this program are deleted."""
        for folder in self._root.glob("*/"):
            if not re.fullmatch(r"[0-9a-f]{2}|parts", folder.name):
                continue
            for entry in os.scandir(folder):
                if _is_unfinished(folder.name, entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < before:
                            os.unlink(entry.path)


def _is_unfinished(folder: str, name: str) -> bool:
    prefix = "part-" if folder == "parts" else folder
    return bool(_UNFINISHED.fullmatch(name)) and name.lstrip(".").startswith(prefix)


def _pieces(file: IO[bytes], start: int, end: int | None) -> Iterator[bytes]:
    """Yield bytes [start, end) in pieces, after an empty first piece. The empty piece starts the
    `with` block, so that closing the iterator also closes the file."""
    with file:
        yield b""
        file.seek(start)
        left = end - start if end is not None else None
        while left != 0:
            piece = file.read(READ_PIECE if left is None else min(READ_PIECE, left))
            if not piece:
                return
            if left is not None:
                left -= len(piece)
            yield piece


def pieces_of(content: IO[bytes]) -> Iterator[bytes]:
    """Return the content of a file object in pieces, from its start."""
    content.seek(0)
    return iter(lambda: content.read(PIECE), b"")


def hash_of(content: IO[bytes]) -> tuple[str, int]:
    """Return sha256 and size of a file object, read from its start in pieces."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces_of(content):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents; sync the names of the folders that were missing."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Sync a folder, so that the names of its files survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync names by themselves
            raise
    finally:
        os.close(descriptor)
