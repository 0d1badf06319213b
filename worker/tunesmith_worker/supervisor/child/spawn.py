"""Start of a trainer process: its own process group, so that its children end with it, and an
environment without settings and cloud keys.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tunesmith_worker.rundir.process import SpawnSettings, default_environment, without_secrets

Stream = int | IO[Any]  # Any: bytes or text, as in subprocess


@dataclass(frozen=True, kw_only=True)
class TrainerProgram:
    """Interpreter and folders of all trainers of a worker."""

    python: str = sys.executable
    token_cache: Path | None = None
    """Folder of tokenised files; None: no cache."""
    compile_cache: Path | None = None
    """Folder of kernels compiled by torch and triton; None: their default."""
    tmp: Path | None = None
    """Folder of temporary files, emptied between trainers; None: the system's."""

    def spawn(
        self, argument: str, *, cwd: Path, stdin: Stream, output: Stream
    ) -> subprocess.Popen[bytes]:
        """`argument` is a run directory or WARM. Call it from the main thread: the death signal
        follows the thread that spawned."""
        env = trainer_environment(self.token_cache, self.compile_cache)
        if self.tmp is not None:
            env["TMPDIR"] = str(self.tmp)
        return subprocess.Popen(
            # -P: never import from the working directory; a warm trainer does not know it yet.
            [self.python, "-P", "-m", "tunesmith_worker.trainer", argument],
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def trainer_environment(
    token_cache: Path | None = None, compile_cache: Path | None = None
) -> dict[str, str]:
    """Return the worker's environment without settings and cloud keys.

    HF_TOKEN stays: gated base models need it.
    """
    env = without_secrets(os.environ)
    default_environment(env)
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONFAULTHANDLER"] = "1"  # a crash in a library prints the Python frames
    if compile_cache is not None:
        env.setdefault("TRITON_CACHE_DIR", str(compile_cache / "triton"))
    spawn = SpawnSettings(
        supervisor_pid=os.getpid(),
        spawned_at=time.time(),
        token_cache=str(token_cache) if token_cache else None,
    )
    return env | spawn.as_environment()
