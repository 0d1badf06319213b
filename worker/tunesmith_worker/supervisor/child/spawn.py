"""Start trainer processes.

Each trainer has its own process group, so that a kill also ends the trainer's child processes. The
trainer's environment contains no cloud keys and none of the worker's TUNESMITH_* settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tunesmith_worker.rundir.device_use import device_use_folder
from tunesmith_worker.rundir.process import SpawnSettings, default_environment, without_secrets

Stream = int | IO[Any]  # Any: bytes or text, as in subprocess


TRAINER_MODULE = "tunesmith_worker.trainer"
EVALUATION_MODULE = "tunesmith_worker.trainer.evaluation"


@dataclass(frozen=True, kw_only=True)
class TrainerProgram:
    """Interpreter and folders that all trainers of a worker use."""

    module: str = TRAINER_MODULE
    """Python module that the interpreter executes."""
    python: str = sys.executable
    token_cache: Path | None = None
    """Cache folder of tokenised files; None: no cache."""
    compile_cache: Path | None = None
    """Cache folder of compiled Triton kernels; None: Triton's default folder."""
    rollout_url: str = ""
    """URL of a vLLM server for rollouts."""
    rollout_token: str = field(default="", repr=False)
    tmp: Path | None = None
    """Folder of temporary files, which is emptied between trainers; None: the system's folder."""

    def spawn(
        self, argument: str, *, cwd: Path, stdin: Stream, output: Stream
    ) -> subprocess.Popen[bytes]:
        """Start a process. `argument`: a run directory, or WARM for a warm trainer.

        Must be called from the main thread: Linux kills the child when the spawning thread ends."""
        env = trainer_environment(self.token_cache, self.compile_cache)
        server = SpawnSettings(
            rollout_url=self.rollout_url or None, rollout_token=self.rollout_token or None
        )
        env.update(server.as_environment())
        if self.tmp is not None:
            env["TMPDIR"] = str(self.tmp)
        return subprocess.Popen(
            # -P: do not import from the working directory, which a warm trainer changes later.
            [self.python, "-P", "-m", self.module, argument],
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
    """Return the worker's environment without cloud keys and TUNESMITH_* settings.

    HF_TOKEN stays, because downloads of gated base models need this token.
    """
    env = without_secrets(os.environ)
    default_environment(env)
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONFAULTHANDLER"] = "1"  # print the Python frames if a library crashes
    if compile_cache is not None:
        env.setdefault("TRITON_CACHE_DIR", str(compile_cache / "triton"))
    spawn = SpawnSettings(
        supervisor_pid=os.getpid(),
        spawned_at=time.time(),
        token_cache=str(token_cache) if token_cache else None,
        device_use=str(device_use_folder()),  # TMPDIR of trainers is another folder
    )
    return env | spawn.as_environment()
