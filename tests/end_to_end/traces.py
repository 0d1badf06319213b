"""Processes, locks, shared memory and files that a job has on its worker's host."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
RECORDS = {"spec.json", "plan.json", "events.jsonl", "report.json", "result.json", "trainer.log"}
SMALL = RECORDS | {"progress"}  # a run of less than a second leaves no progress mark
"""Files that remain after a run has ended. `KEPT` also has the files from which a run can
resume."""
KEPT = SMALL | {"control.json", "checkpoints"}


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def processes(folder: Path) -> set[int]:
    """Return processes that work in `folder`, name it in their command line, or use a file in
    it."""
    return {pid for pid in pids() if any(str(folder) in link for link in _links(pid))}


def _links(pid: int) -> Iterator[str]:
    proc = Path(f"/proc/{pid}")
    with suppress(OSError):  # the process has ended meanwhile
        yield os.readlink(proc / "cwd")
        yield (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        for descriptor in (proc / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(descriptor)
        yield (proc / "maps").read_text()


def locks(*folders: Path) -> set[str]:
    """Return the lines of /proc/locks about files in these folders."""
    inodes = {str(path.lstat().st_ino) for folder in folders for path in folder.rglob("*")}
    lines = Path("/proc/locks").read_text().splitlines()
    return {line for line in lines if line.split()[-3].rsplit(":", 1)[-1] in inodes}


def shared_memory() -> set[str]:
    # Other tests start and stop PostgreSQL at the same time.
    return {one.name for one in SHARED_MEMORY.iterdir() if not one.name.startswith("PostgreSQL.")}


def unfinished(*folders: Path) -> set[Path]:
    """Return sockets, and files that still have a temporary name."""
    return {
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.name.endswith(".part") or stat.S_ISSOCK(path.lstat().st_mode)
    }
