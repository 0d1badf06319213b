"""Model of a power cut: what a local store and SQLite hold after a crash at any point.

The model forgets what a file system may forget. A file keeps the content of its last `os.fsync`; a
name keeps the state of its folder's last `os.fsync`. SQLite runs with synchronous=FULL, so each
commit survives: the worst case for a row that must not outlive its bytes.

Each call of `os.fsync`, `os.replace` and their like is a point, and so is each commit. A real test
with a block device that drops writes (dm-flakey) needs a kernel module, which test hosts lack.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tunesmith_server.core import database

_CALLS = ("replace", "rename", "link", "unlink", "remove", "mkdir", "fsync", "fdatasync")


@dataclass(frozen=True, kw_only=True)
class Crash:
    """State of the disk after a power cut."""

    point: str
    blobs: dict[str, bytes]
    """Content by path; files whose name and content survive."""
    database: tuple[bytes, bytes]
    """The database file and its write-ahead log."""


class PowerCuts:
    """Records one Crash per point and per kind of loss."""

    def __init__(self, blobs: Path, database_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.crashes: list[Crash] = []
        self._blobs, self._database = blobs, database_file
        self._synced: dict[int, bytes] = {}
        self._entries: dict[Path, dict[str, int]] = {}
        self._open: list[int] = []
        for name in _CALLS:
            monkeypatch.setattr(os, name, self._recorded(name, getattr(os, name)))
        commit = database._SQLiteConnection.commit

        def recorded_commit(connection: Any) -> None:  # Any: sqlite3.Connection
            commit(connection)
            self._record("commit")

        monkeypatch.setattr(database._SQLiteConnection, "commit", recorded_commit)

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **options: Any) -> Any:  # Any: the call's own
            self._record(f"before {name} {arguments}")
            result = call(*arguments, **options)
            if name in ("fsync", "fdatasync"):
                self._sync(arguments[0])
            self._record(f"after {name} {arguments}")
            return result

        return recorded

    def _sync(self, descriptor: Any) -> None:  # Any: a number or a file
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        if path != self._blobs and self._blobs not in path.parents:
            return
        if path.is_dir():
            self._entries[path] = _inodes(path)
        else:
            self._open.append(os.dup(number))  # so that no other file gets its inode
            self._synced[os.fstat(number).st_ino] = path.read_bytes()

    def _record(self, point: str) -> None:
        stored = tuple(
            file.read_bytes() if file.exists() else b""
            for file in (self._database, self._database.with_name(f"{self._database.name}-wal"))
        )
        assert len(stored) == 2
        for loss, entries in (
            ("all that is not synced", self._entries),
            ("data without fsync, but no names", None),
        ):
            crash = Crash(
                point=f"{len(self.crashes)}, {point}, losing {loss}",
                blobs=dict(self._survivors(self._blobs, "", entries)),
                database=stored,
            )
            if not self.crashes[-2:] or (crash.blobs, crash.database) not in [
                (earlier.blobs, earlier.database) for earlier in self.crashes[-2:]
            ]:
                self.crashes.append(crash)

    def _survivors(
        self, folder: Path, prefix: str, entries: dict[Path, dict[str, int]] | None
    ) -> list[tuple[str, bytes]]:
        names = _inodes(folder) if entries is None else entries.get(folder, {})
        survivors: list[tuple[str, bytes]] = []
        for name, inode in names.items():
            path = folder / name
            if path.is_dir():
                survivors += self._survivors(path, f"{prefix}{name}/", entries)
            else:
                survivors.append((prefix + name, self._synced.get(inode, b"")))
        return survivors


def _inodes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    return {entry.name: entry.inode() for entry in os.scandir(folder)}
