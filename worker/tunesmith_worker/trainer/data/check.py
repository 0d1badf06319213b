"""Read an upload in a process of its own: `python -m tunesmith_worker.trainer.data.check`.

A file made to exhaust memory, to take for ever or to crash a decoder ends this process and not the
worker, which then says so. Prints a FileValidation as JSON.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tunesmith_schema import FileValidation, RowProblem
from tunesmith_worker.rundir.process import SpawnSettings, die_with_supervisor, without_secrets

from .validate import validate_file

MOST_SECONDS = 1800.0
BASE_MEMORY = 2 * 2**30
MEMORY_PER_BYTE = 16
"""A JSON array is read whole; as Python objects it takes up to ten times its size."""
_SENT_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


class ReaderKilled(Exception):
    """By the operator, or by the kernel for want of memory: the file may be read once more."""


def check_upload(path: Path, filename: str, *, seconds: float = MOST_SECONDS) -> FileValidation:
    """What is in the file, or that it cannot be read on this host."""
    command = [sys.executable, "-m", __name__, str(path), filename]
    env = {
        **without_secrets(os.environ),
        # Arrow's own allocator reserves far more than it uses, which the limit would count.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        **SpawnSettings(supervisor_pid=os.getpid()).as_environment(),
    }
    with tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(
                command,
                env=env,
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=seconds,
                start_new_session=True,  # Ctrl-C is for the worker
            )
        except subprocess.TimeoutExpired:
            return unreadable(f"reading it took longer than {seconds:.0f} s: split the file")
        if done.returncode == 0:
            return FileValidation.model_validate_json(done.stdout)
        errors.seek(0)
        said = errors.read()[-2000:].decode(errors="replace").strip()
    if -done.returncode in _SENT_FROM_OUTSIDE:
        raise ReaderKilled(f"the reader of {filename} was killed by signal {-done.returncode}")
    if done.returncode < 0:
        return unreadable(f"its reader was killed by signal {-done.returncode}")
    return unreadable(said.rpartition("\n")[2] or f"its reader ended with {done.returncode}")


def unreadable(why: str) -> FileValidation:
    """The verdict on a file that no reader gets through."""
    problem = RowProblem(row=0, message=f"the file could not be read: {why}"[:500])
    return FileValidation(ok=False, problems=[problem], num_problems=1)


def main(path: Path, filename: str) -> None:
    limit = BASE_MEMORY + MEMORY_PER_BYTE * path.stat().st_size
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(ValueError, OSError):  # the operator's own limit is lower
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        found = validate_file(path, filename)
    except MemoryError:
        found = unreadable(f"it needs more than {limit:,} bytes of memory: split it")
    sys.stdout.write(found.model_dump_json())


if __name__ == "__main__":
    die_with_supervisor()
    main(Path(sys.argv[1]), sys.argv[2])
