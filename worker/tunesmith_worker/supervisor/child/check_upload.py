"""Read an uploaded file in a child process, so that a malicious file cannot end the worker.

The child runs `trainer/data/check.py`. If a file exhausts memory, takes too long or crashes a
decoder, only the child ends, and the result gives the reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tunesmith_schema import FileValidation, RowProblem
from tunesmith_worker.rundir.process import SpawnSettings, without_secrets

PROGRAM = "tunesmith_worker.trainer.data.check"
MAX_SECONDS = 1800.0
_EXTERNAL_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


class ReaderKilled(Exception):
    """Raised if the operator or the kernel killed the reader. Reading the file again may
    succeed."""


def check_upload(path: Path, filename: str, *, seconds: float = MAX_SECONDS) -> FileValidation:
    """Validate a file and return its contents and problems; an unreadable file has one problem."""
    env = {
        **without_secrets(os.environ),
        # Arrow's own allocator reserves more memory than it uses, which counts against the limit.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        **SpawnSettings(supervisor_pid=os.getpid()).as_environment(),
    }
    with tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(
                [sys.executable, "-m", PROGRAM, str(path), filename],
                env=env,
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=seconds,
                start_new_session=True,  # Ctrl-C must reach only the worker
            )
        except subprocess.TimeoutExpired:
            return _unreadable(f"reading took longer than {seconds:.0f} s; split the file")
        if done.returncode == 0:
            return FileValidation.model_validate_json(done.stdout)
        errors.seek(0)
        output = errors.read()[-2000:].decode(errors="replace").strip()
    if -done.returncode in _EXTERNAL_SIGNALS:
        raise ReaderKilled(f"the reader of {filename} was killed by signal {-done.returncode}")
    if done.returncode < 0:
        return _unreadable(f"the reader crashed with signal {-done.returncode}")
    last_line = output.rpartition("\n")[2]
    return _unreadable(last_line or f"the reader ended with status {done.returncode}")


def _unreadable(reason: str) -> FileValidation:
    problem = RowProblem(row=0, message=f"the file could not be read: {reason}"[:500])
    return FileValidation(ok=False, problems=[problem], num_problems=1)
