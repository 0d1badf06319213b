"""How a trainer is spawned: an exec'd process in its own group, so that nothing it starts outlives
it, with a clean environment: no setting of ours, no key to anybody's cloud.
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

Stream = int | IO[Any]  # Any: bytes or text, as subprocess has it


@dataclass(frozen=True, kw_only=True)
class TrainerProgram:
    """What a worker's trainers are started with, all alike."""

    python: str = sys.executable
    token_cache: Path | None = None
    """Where they keep tokenised files; None: nowhere."""
    compile_cache: Path | None = None
    """Where torch and triton keep what they compiled; None: where they do by themselves."""
    tmp: Path | None = None
    """Their folder for temporary files, emptied between two; None: everybody's."""

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
    """The worker's environment without our settings and without keys to anybody's cloud. A token
    for the hub (HF_TOKEN) stays: gated base models need it."""
    env = without_secrets(os.environ)
    default_environment(env)
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONFAULTHANDLER"] = "1"  # a crash of a library shows its Python frames
    if compile_cache is not None:
        env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compile_cache / "inductor"))
        env.setdefault("TRITON_CACHE_DIR", str(compile_cache / "triton"))
    spawn = SpawnSettings(
        supervisor_pid=os.getpid(),
        spawned_at=time.time(),
        token_cache=str(token_cache) if token_cache else None,
    )
    return env | spawn.as_environment()
