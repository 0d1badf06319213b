"""Remove processes, shared memory and temporary files that a killed trainer left."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

_SHARED_MEMORY_NAME = re.compile(r"(?:torch_|__KMP_REGISTERED_LIB_)(\d+)_")
"""Pattern of the names of torch's and OpenMP's shared memory files, which contain the process
id."""
SHARED_MEMORY = Path("/dev/shm")


def processes(run_dir: Path, session: int | None) -> list[int]:
    """Return ids of live processes whose working directory is in `run_dir`, or whose session id is
    `session`."""
    return [
        pid
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (pid := int(entry.name)) != os.getpid()
        if _belongs(entry, run_dir, session)
    ]


def end_processes(run_dir: Path, session: int | None, seconds: float) -> list[int]:
    """Kill the run's processes and wait; return the ids of processes that are still alive."""
    deadline = time.monotonic() + seconds
    while alive := processes(run_dir, session):
        for pid in alive:
            with contextlib.suppress(
                ProcessLookupError, PermissionError
            ):  # the process has ended or belongs to another user
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return alive


def shared_memory(folder: Path = SHARED_MEMORY) -> set[str]:
    """Return the names of shared memory files of this user's current and past processes."""
    names = set()
    with contextlib.suppress(OSError):  # the folder does not exist
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if _SHARED_MEMORY_NAME.match(path.name) and path.stat().st_uid == os.getuid():
                    names.add(path.name)
    return names


def free_shared_memory(before: set[str], folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove new shared memory files of ended processes; return the names of these files.

    `before`: names of files that must stay."""
    removed = []
    for name in sorted(shared_memory(folder) - before):
        match = _SHARED_MEMORY_NAME.match(name)
        if match and not Path("/proc", match[1]).exists():
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
    except OSError:  # the process has ended or belongs to another user
        return False


_TEMPORARY_NAME = re.compile(r"tunesmith-trainer-(\d+)-")


def new_temporary_folder() -> Path:
    """Create a temporary folder for this worker's trainers; remove the folders of killed workers.

    The folder is in the system's temporary directory, because socket paths must be short.
    """
    for path in Path(tempfile.gettempdir()).iterdir():
        match = _TEMPORARY_NAME.match(path.name)
        if match and not Path("/proc", match[1]).exists():
            shutil.rmtree(path, ignore_errors=True)  # other users' folders stay
    return Path(tempfile.mkdtemp(prefix=f"tunesmith-trainer-{os.getpid()}-"))


def empty_folder(folder: Path) -> None:
    """Empty the folder. Call `empty_folder` only while no trainer runs."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
