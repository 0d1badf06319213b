"""Watchdog: detect a trainer that runs but makes no progress.

Progress is a new event, a progress mark of the trainer (`rundir/progress.py`) or any other write in
the run directory. Before the first step, CPU time counts as progress too, because imports, loading,
tokenising and compiling write no file for a long time. After the first step, CPU time no longer
counts, because a process that waits for a hung GPU uses a whole core.

The limit is `FLOOR_SECONDS` or, if longer, `FACTOR` times the longest interval between two signs of
progress in this attempt. A trainer that uses CPU time but writes nothing is stalled after
`CPU_FACTOR` times the limit. Time in which the supervisor has paused the trainer does not count.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from tunesmith_schema import ErrorCategory, ErrorCode, EventKind, JobFailure
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory

from .child.trainer_process import TrainerProcess
from .cleanup import processes

FLOOR_SECONDS = 1800.0
"""Minimum seconds without progress after which a trainer counts as stalled."""
FACTOR = 10.0
CPU_FACTOR = 8.0
CHECK_SECONDS = 10.0
_CPU_SHARE = 0.05
"""Minimum CPU seconds per second of wall time that count as progress before the first step."""
_TICKS = os.sysconf("SC_CLK_TCK")
_NO_PROGRESS = frozenset({"trainer.log", "control.json", "spec.json"})
"""Files whose changes do not count as progress. A library that hangs may still log warnings."""


class Watchdog:
    def __init__(
        self,
        run: RunDirectory,
        now: Callable[[], float] = time.monotonic,
        cpu_seconds: Callable[[RunDirectory, int], float] | None = None,
    ) -> None:
        self._run, self._now = run, now
        self._cpu_seconds = cpu_seconds or _cpu_seconds
        self._last = self._written = self._checked = self._next_check = now()
        self._newest, self._longest, self._cpu = 0, 0.0, 0.0

    def stalled(self, trainer: TrainerProcess, phase: str, *, stepped: bool) -> JobFailure | None:
        """Return a JobFailure if the trainer is stalled; None if the trainer makes progress.

        `phase`: phase according to the newest event. `stepped`: True after the first step."""
        now = self._now()
        if now < self._next_check:
            return None
        since_check, self._checked = now - self._checked, now
        self._next_check = now + CHECK_SECONDS
        if trainer.is_paused:
            self._last = self._written = now
            return None
        if self._has_written():
            self._longest = max(self._longest, now - self._last)
            self._last = self._written = now
            return None
        if not stepped and self._computes(trainer.pid, since_check):
            self._last = now
        for silent, limit in (
            (now - self._last, self.limit),
            (now - self._written, CPU_FACTOR * self.limit),
        ):
            if silent > limit:
                return self._failure(silent, limit, phase)
        return None

    @property
    def limit(self) -> float:
        """Seconds without progress after which the trainer is stalled."""
        return max(FLOOR_SECONDS, FACTOR * self._longest)

    def _failure(self, silent: float, limit: float, phase: str) -> JobFailure:
        return JobFailure(
            category=ErrorCategory.INFRASTRUCTURE,
            code=ErrorCode.TRAINER_STALLED,
            message=f"the trainer made no progress for {silent:.0f} s in the phase {phase!r}; the "
            f"limit is {limit:.0f} s (the longest wait before was {self._longest:.0f} s)",
            hint="look for a hung GPU (`nvidia-smi`, `dmesg | grep -i xid`), network file system "
            "or grader on the worker's host; trainer.log in the run directory has the trainer's "
            "output",
        )

    def _has_written(self) -> bool:
        newest = self._newest_write()
        changed, self._newest = newest != self._newest, newest
        return changed

    def _newest_write(self) -> int:
        """Return the time of the newest change in the run directory, in ns of the file system's
        clock."""
        newest = 0
        for folder, _, names in os.walk(self._run.root):
            for name in ("", *names):
                if name not in _NO_PROGRESS:
                    with contextlib.suppress(OSError):  # the file was renamed or removed
                        newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime_ns)
        return newest

    def _computes(self, pid: int, seconds: float) -> bool:
        before, self._cpu = self._cpu, self._cpu_seconds(self._run, pid)
        return self._cpu - before > _CPU_SHARE * seconds


def record_stall(run: RunDirectory, failure: JobFailure) -> None:
    """Write the `stalled` event.

    Call this function after the trainer has ended, because the trainer writes to events.jsonl too.
    """
    with contextlib.suppress(OSError):  # the outcome reports the failure too
        EventLog(run.events).append(
            EventKind.STALLED,
            f"{failure.message}. The trainer was stopped; the next attempt continues from the "
            "newest resume point",
            {"code": failure.code, "hint": failure.hint},
            level="warn",
        )


def _cpu_seconds(run: RunDirectory, pid: int) -> float:
    """Return the CPU seconds of the trainer's live processes."""
    ticks = 0
    for process in processes(run.root, pid):
        with contextlib.suppress(OSError, IndexError):  # the process has just ended
            stat = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(stat[11]) + int(stat[12])
    return ticks / _TICKS
