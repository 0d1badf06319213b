"""Read an uploaded file in a child process, so that a malicious file cannot crash the worker.

The child runs `trainer/data/check.py`. If a file exhausts memory, takes too long or crashes a
decoder, only the child process ends, and the result gives the reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tunesmith_schema import FileFindings, FileValidation, RowProblem
from tunesmith_worker.rundir.process import SpawnSettings, without_secrets

PROGRAM = "tunesmith_worker.trainer.data.check"
MAX_SECONDS = 1800.0
POLL_SECONDS = 0.5
_EXTERNAL_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


class ReaderKilled(Exception):
    """Raised if the operator or the kernel killed the reader. Reading the file again may
    succeed."""

    by_kill = False
    """True if SIGKILL ended the reader; the kernel sends SIGKILL if the host runs out of memory."""


class ReadingStopped(Exception):
    """Raised if the check was stopped because `stopped` returned True."""


def check_upload(
    path: Path,
    filename: str,
    *,
    seconds: float = MAX_SECONDS,
    stopped: Callable[[], bool] = lambda: False,
) -> FileFindings:
    """Validate a file and return its contents, problems and statistics. For an unreadable file, the
    result has one problem.

    Once `stopped` returns True, the reader is killed.
    """
    env = {
        **without_secrets(os.environ),
        # Arrow's own allocator reserves more memory than it uses, which counts against the limit.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        **SpawnSettings(supervisor_pid=os.getpid()).as_environment(),
    }
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(path), filename],
            env=env,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C must reach only the worker
        ) as reader:
            try:
                stdout = _output_of(reader, time.monotonic() + seconds, stopped)
            except subprocess.TimeoutExpired:
                return _unreadable(f"reading took longer than {seconds:.0f} s; split the file")
            finally:
                if reader.poll() is None:
                    reader.kill()
        if reader.returncode == 0:
            return FileFindings.model_validate_json(stdout)
        errors.seek(0)
        output = errors.read()[-2000:].decode(errors="replace").strip()
    status = reader.returncode
    if -status in _EXTERNAL_SIGNALS:
        killed = ReaderKilled(f"the reader of {filename} was killed by signal {-status}")
        killed.by_kill = -status == signal.SIGKILL
        raise killed
    if status < 0:
        return _unreadable(f"the reader crashed with signal {-status}")
    last_line = output.rpartition("\n")[2]
    return _unreadable(last_line or f"the reader ended with status {status}")


def _output_of(
    reader: subprocess.Popen[bytes], deadline: float, stopped: Callable[[], bool]
) -> bytes:
    while True:
        try:
            return reader.communicate(timeout=POLL_SECONDS)[0]
        except subprocess.TimeoutExpired:
            if stopped():
                raise ReadingStopped from None
            if time.monotonic() > deadline:
                raise


def _unreadable(reason: str) -> FileFindings:
    problem = RowProblem(row=0, message=f"the file could not be read: {reason}"[:500])
    result = FileValidation(ok=False, problems=[problem], num_problems=1)
    return FileFindings(result=result)
