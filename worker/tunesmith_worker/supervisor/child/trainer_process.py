"""The trainer as a child: start, pause, stop, kill, and say why it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from pathlib import Path

from tunesmith_schema import JobFailure

from .exit_diagnosis import MemoryMonitor, why_it_ended
from .host_memory import HostMemory
from .spawn import TrainerProgram
from .warm_trainer import WarmTrainer

log = logging.getLogger(__name__)

TAKE_SECONDS = 5.0
"""A warm trainer that is ready takes a run in 0.05 s."""
IMPORT_SECONDS = 30.0
"""One that still imports needs no longer than a fresh trainer would from here."""
LOOK_SECONDS = 1.0
"""Between two looks at the memory that it holds."""


class TrainerProcess:
    def __init__(
        self,
        run_dir: Path,
        program: TrainerProgram,
        warm: WarmTrainer | None = None,
        host: HostMemory | None = None,
    ) -> None:
        """The run goes to `warm`, and to a fresh process when that does not take it."""
        self._run_dir, self._program, self._warm = run_dir, program, warm
        self._log = run_dir / "trainer.log"
        self._witness, self._next_look = MemoryMonitor(host or HostMemory()), 0.0
        self._paused = self._ending = False
        self._paused_at = 0.0
        self.paused_seconds = 0.0
        """How long it has stood still in pauses that are over."""
        if warm is None:
            self._process = self._fresh()
            return
        self._process = warm.process
        self._waits_until = self._patience(warm)
        warm.hand_over(run_dir)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        if self._warm is not None:
            self._look_at(self._warm)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._witness.look(self._process.pid)
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
                self._waits_until = self._patience(self._warm)
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the group and wait until the process is gone."""
        self._ending = True
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def why_it_ended(self) -> JobFailure:
        """For a trainer that left no result: its status, its log, the kernel's counters."""
        return why_it_ended(self._process.poll(), self._log, self._witness.evidence())

    def _look_at(self, warm: WarmTrainer) -> None:
        """Whether it has taken the run; a fresh process does when it cannot or does not."""
        status = self._process.poll()
        if warm.has_taken() or (self._ending and status is not None):
            warm.close()
            self._warm = None
        elif self._ending or self._paused:
            return
        elif status is not None or time.monotonic() > self._waits_until:
            log.warning(
                "the warm trainer %s: a fresh one is started. It had said: %s",
                "does not answer" if status is None else f"ended with status {status}",
                warm.last_words() or "nothing",
            )
            warm.kill()
            self._warm, self._process = None, self._fresh()

    def _patience(self, warm: WarmTrainer) -> float:
        return time.monotonic() + (TAKE_SECONDS if warm.is_ready() else IMPORT_SECONDS)

    def _fresh(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return self._program.spawn(
                str(self._run_dir),
                cwd=self._run_dir,
                stdin=subprocess.DEVNULL,
                output=output,
            )

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(self._process.pid, number)
