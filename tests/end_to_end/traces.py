"""What a job has on its worker's host at this moment, seen from outside."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SMALL = {"spec.json", "plan.json", "events.jsonl", "report.json", "result.json", "trainer.log"}
"""What stays of a run once it is over, and what it can be gone on from: README of how it works."""
KEPT = SMALL | {"control.json", "checkpoints"}


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def processes(folder: Path) -> set[int]:
    """Those that work in `folder`, name it, or have a file below it open or mapped."""
    return {pid for pid in pids() if any(str(folder) in link for link in _links(pid))}


def _links(pid: int) -> Iterator[str]:
    proc = Path(f"/proc/{pid}")
    with suppress(OSError):  # it has ended meanwhile
        yield os.readlink(proc / "cwd")
        yield (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        for descriptor in (proc / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(descriptor)
        yield (proc / "maps").read_text()


def locks(*folders: Path) -> set[str]:
    """Lines of /proc/locks about files below these."""
    inodes = {str(path.lstat().st_ino) for folder in folders for path in folder.rglob("*")}
    lines = Path("/proc/locks").read_text().splitlines()
    return {line for line in lines if line.split()[-3].rsplit(":", 1)[-1] in inodes}


def shared_memory() -> set[str]:
    # Other tests' PostgreSQL comes and goes.
    return {one.name for one in SHARED_MEMORY.iterdir() if not one.name.startswith("PostgreSQL.")}


def unfinished(*folders: Path) -> set[Path]:
    """Sockets, and what was begun under a temporary name."""
    return {
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.name.endswith(".part") or stat.S_ISSOCK(path.lstat().st_mode)
    }
