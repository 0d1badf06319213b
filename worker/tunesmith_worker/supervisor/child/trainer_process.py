"""Start, pause, stop and kill a trainer process, and diagnose its exit."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from pathlib import Path

from tunesmith_schema import JobFailure

from .exit_diagnosis import MemoryMonitor, diagnose_exit
from .host_memory import HostMemory
from .spawn import TrainerProgram
from .warm_trainer import WarmTrainer

log = logging.getLogger(__name__)

TAKE_SECONDS = 5.0
"""Maximum seconds until a warm trainer (see launcher.py) whose imports are done accepts a run;
usually 0.05 s are enough."""
IMPORT_SECONDS = 30.0
"""Maximum seconds until a warm trainer that is still importing accepts a run."""
MEMORY_SECONDS = 1.0
"""Interval of memory measurements in seconds."""


class TrainerProcess:
    def __init__(
        self,
        run_dir: Path,
        program: TrainerProgram,
        warm: WarmTrainer | None = None,
        host: HostMemory | None = None,
    ) -> None:
        """Start the run in `warm`, or in a fresh process if `warm` does not accept the run."""
        self._run_dir, self._program, self._warm = run_dir, program, warm
        self._log = run_dir / "trainer.log"
        self._memory, self._next_measurement = MemoryMonitor(host or HostMemory()), 0.0
        self._paused = self._ending = False
        self._paused_at = 0.0
        self.paused_seconds = 0.0
        """Total duration of completed pauses."""
        if warm is None:
            self._process = self._spawn_fresh()
            return
        self._process = warm.process
        self._warm_deadline = self._deadline(warm)
        warm.hand_over(run_dir)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status (negative for a signal); None while the trainer runs."""
        if self._warm is not None:
            self._check_warm(self._warm)
        if time.monotonic() >= self._next_measurement:
            self._next_measurement = time.monotonic() + MEMORY_SECONDS
            self._memory.update(self._process.pid)
        return self._process.poll()

    def ask_to_stop(self) -> None:
        self._ending = True
        self.resume()
        self._signal(signal.SIGTERM)

    @property
    def is_paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        if not self._paused:
            self._paused, self._paused_at = True, time.monotonic()
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.paused_seconds += time.monotonic() - self._paused_at
            if self._warm is not None:
                self._warm_deadline = self._deadline(self._warm)
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process group and wait until the trainer has ended."""
        self._ending = True
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def diagnose_exit(self) -> JobFailure:
        """Return a JobFailure that explains why the trainer left no result."""
        return diagnose_exit(self._process.poll(), self._log, self._memory.evidence())

    def _check_warm(self, warm: WarmTrainer) -> None:
        """Start a fresh process if the warm trainer ended or did not accept the run in time."""
        status = self._process.poll()
        if warm.has_taken() or (self._ending and status is not None):
            warm.close()
            self._warm = None
        elif self._ending or self._paused:
            return
        elif status is not None or time.monotonic() > self._warm_deadline:
            log.warning(
                "the warm trainer %s; starting a fresh one. Its output: %s",
                "does not answer" if status is None else f"ended with status {status}",
                warm.output_end() or "none",
            )
            warm.kill()
            self._warm, self._process = None, self._spawn_fresh()

    def _deadline(self, warm: WarmTrainer) -> float:
        return time.monotonic() + (TAKE_SECONDS if warm.is_ready() else IMPORT_SECONDS)

    def _spawn_fresh(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return self._program.spawn(
                str(self._run_dir),
                cwd=self._run_dir,
                stdin=subprocess.DEVNULL,
                output=output,
            )

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the process has just ended
            os.killpg(self._process.pid, number)
