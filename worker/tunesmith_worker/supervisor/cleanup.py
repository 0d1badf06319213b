"""What a trainer can leave behind when it was killed: processes, and files in shared memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

_OF_A_PROCESS = re.compile(r"(?:torch_|__KMP_REGISTERED_LIB_)(\d+)_")
"""How torch and OpenMP name what they put there, with the process's id."""
SHARED_MEMORY = Path("/dev/shm")


def processes(run_dir: Path, session: int | None) -> list[int]:
    """Those that work below `run_dir`, or belong to a trainer's session; none that has ended."""
    return [
        pid
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (pid := int(entry.name)) != os.getpid()
        if _belongs(entry, run_dir, session)
    ]


def end_processes(run_dir: Path, session: int | None, seconds: float) -> list[int]:
    """Kill them and wait; gives those that are still there."""
    deadline = time.monotonic() + seconds
    while left := processes(run_dir, session):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or not ours
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return left


def shared_memory(folder: Path = SHARED_MEMORY) -> set[str]:
    """Names of files there that a process of ours, still alive or not, has put there."""
    found = set()
    with contextlib.suppress(OSError):  # no such folder: nothing is shared
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if _OF_A_PROCESS.match(path.name) and path.stat().st_uid == os.getuid():
                    found.add(path.name)
    return found


def free_shared_memory(before: set[str], folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove what came after `before` and whose process has ended; gives the names."""
    removed = []
    for name in sorted(shared_memory(folder) - before):
        found = _OF_A_PROCESS.match(name)
        if found and not Path("/proc", found[1]).exists():
            (folder / name).unlink(missing_ok=True)
            removed.append(name)
    return removed


def _belongs(entry: Path, run_dir: Path, session: int | None) -> bool:
    try:
        state, *fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        if state == "Z":
            return False
        if session is not None and int(fields[2]) == session:
            return True
        return (entry / "cwd").readlink().is_relative_to(run_dir)
    except OSError:  # it has ended meanwhile, or is somebody else's
        return False


_TEMPORARY_NAME = re.compile(r"tunesmith-trainer-(\d+)-")


def new_temporary_folder() -> Path:
    """This worker's; removes those of workers that were killed."""
    for path in Path(tempfile.gettempdir()).iterdir():
        found = _TEMPORARY_NAME.match(path.name)
        if found and not Path("/proc", found[1]).exists():
            shutil.rmtree(path, ignore_errors=True)  # another user's stays
    return Path(tempfile.mkdtemp(prefix=f"tunesmith-trainer-{os.getpid()}-"))


def empty_folder(folder: Path) -> None:
    """Remove what is in it; no trainer runs."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
