"""Obey the server's commands for a claimed job: cancel, pause and stop. Repeated commands have no
effect."""

from __future__ import annotations

import contextlib
import logging
import signal
import time

from tunesmith_schema import Control, ControlAction, ControlFile
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, write_json
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess

log = logging.getLogger(__name__)

SILENCE_SECONDS = 120.0
"""A pausing trainer that writes nothing for this many seconds is killed."""
MAX_PAUSE_SECONDS = 900.0
"""A pausing trainer is killed after this many seconds, even if it still writes."""
CHECK_SECONDS = 1.0


class Cancelled(Exception):
    """Raised if the server cancelled the job."""


class Released(Exception):
    """Raised if this worker must release the job: at shutdown, or on a pause before training."""


class ServerCommands:
    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._stop_written = self._pause_killed = False
        self._pausing_since: float | None = None
        self._last_write_seen = self._next_check = 0.0
        self._newest = 0

    def obey(self, command: Control, trainer: TrainerProcess | None) -> None:
        """Carry out a command.

        Raises Cancelled for the command cancel, and Released for a pause before the trainer has
        started."""
        if command is Control.CANCEL:
            raise Cancelled
        if command is Control.PAUSE and trainer is None:
            raise Released
        if command is Control.PAUSE and self._pausing_since is None:
            self._pause(trainer)
        if command is Control.STOP and not self._stop_written:
            with contextlib.suppress(OSError):  # if the disk is full, the next reply retries
                write_json(self._run.control, ControlFile(action=ControlAction.STOP))
                self._stop_written = True

    @property
    def pausing(self) -> bool:
        """True if the trainer has been asked to save a resume point and exit."""
        return self._pausing_since is not None

    def watch(self, trainer: TrainerProcess | None) -> None:
        """Kill a trainer that hangs while pausing."""
        now = time.monotonic()
        if self._pausing_since is None or trainer is None or now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        written = self._newest_write()
        if trainer.is_paused or written != self._newest:
            self._last_write_seen, self._newest = now, written
        silent, total = now - self._last_write_seen, now - self._pausing_since
        if (silent > SILENCE_SECONDS or total > MAX_PAUSE_SECONDS) and trainer.poll() is None:
            self._pause_killed = True
            trainer.kill()
            EventLog(self._run.events).message(
                f"the trainer did not pause within {total:.0f} s and wrote nothing for "
                f"{silent:.0f} s; it was killed. The job will continue from its last resume point",
                level="warn",
            )

    def ended_by_pause(self, status: int | None) -> bool:
        """Return True if a trainer ended without a result because of the pause."""
        # SIGTERM kills a Python process if its signal handler is not installed yet.
        return self._pause_killed or (self._pausing_since is not None and status == -signal.SIGTERM)

    def _pause(self, trainer: TrainerProcess | None) -> None:
        if trainer is None or trainer.poll() is not None:
            return  # the trainer has already ended
        log.info("pausing: the trainer saves a resume point and exits")
        self._pausing_since = self._last_write_seen = time.monotonic()
        trainer.ask_to_stop()

    def _newest_write(self) -> int:
        """Return the time of the trainer's newest write, in ns of the file system's clock."""
        newest = 0
        folder = self._run.root / "checkpoints"
        for path in (self._run.events, folder, *folder.rglob("*")):
            with contextlib.suppress(OSError):  # the trainer has just renamed or removed the file
                newest = max(newest, path.stat().st_mtime_ns)
        return newest
