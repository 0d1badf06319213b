"""The trainer as a child: spawn, pause, stop, kill, and say why it ended.

An exec'd process in its own group, so that nothing it starts outlives it. It gets a clean
environment: no setting of ours, no key to anybody's cloud.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure

from .errors import EXIT_DISK_FULL, disk_full
from .process import SpawnSettings, default_environment, without_secrets

_TAIL_BYTES = 1500


class TrainerProcess:
    def __init__(
        self, run_dir: Path, python: str = sys.executable, *, token_cache: Path | None = None
    ) -> None:
        self._log = run_dir / "trainer.log"
        self._paused = False
        with self._log.open("ab") as output:
            # From the main thread: the death signal follows the thread that spawned.
            self._process = subprocess.Popen(
                [python, "-m", "tunesmith_worker.run", str(run_dir)],
                cwd=run_dir,
                env=trainer_environment(token_cache),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        self.resume()
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the group and wait until the process is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def why_it_ended(self) -> JobFailure:
        """For a trainer that left no result: its status and the end of its log."""
        status = self._process.poll()
        tail = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        if status == -signal.SIGKILL:
            return JobFailure(
                category=ErrorCategory.OUT_OF_MEMORY,
                code=ErrorCode.OUT_OF_MEMORY,
                message="the trainer was killed (SIGKILL), most likely by the kernel's "
                "out-of-memory killer",
                hint="lower per_device_train_batch_size or max_seq_length; "
                "`dmesg` on the worker's host has the kernel's word",
            )
        if status == EXIT_DISK_FULL:
            return disk_full(f"nothing more could be written to {self._log.parent}")
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return JobFailure(
            category=ErrorCategory.INFRASTRUCTURE,
            code=ErrorCode.TRAINER_CRASHED,
            message=f"the trainer ended with {how} and left no result; its log ends:\n{tail}",
            hint=f"the whole log is {self._log} on the worker's host",
        )

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(self._process.pid, number)


def trainer_environment(token_cache: Path | None = None) -> dict[str, str]:
    """The worker's environment without our settings and without keys to anybody's cloud. A token
    for the hub (HF_TOKEN) stays: gated base models need it."""
    env = without_secrets(os.environ)
    default_environment(env)
    env["PYTHONUNBUFFERED"] = "1"
    spawn = SpawnSettings(
        supervisor_pid=os.getpid(),
        spawned_at=time.time(),
        token_cache=str(token_cache) if token_cache else None,
    )
    return env | spawn.as_environment()
