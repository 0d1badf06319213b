"""What the server orders while a job is held, each order carried out once.

Cancelling is the supervisor's own business, as nothing is to be saved; here it is only raised.
"""

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
"""A trainer that pauses finishes its step and saves. One that writes nothing for so long hangs."""
MOST_SECONDS = 900.0
"""However much it writes, it has had enough time by then."""
LOOK_SECONDS = 1.0


class Cancelled(Exception):
    """The server wants the job stopped."""


class Released(Exception):
    """This worker gives the job back: it shuts down, or the job is paused before it trains."""


class ServerCommands:
    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._stop_written = self._gave_up = False
        self._pausing_since: float | None = None
        self._alive_at = self._next_look = 0.0
        self._written = 0

    def obey(self, order: Control, trainer: TrainerProcess | None) -> None:
        """Pass an order on. Raises Cancelled, or Released for a pause before there is a trainer."""
        if order is Control.CANCEL:
            raise Cancelled
        if order is Control.PAUSE and trainer is None:
            raise Released
        if order is Control.PAUSE and self._pausing_since is None:
            self._pause(trainer)
        if order is Control.STOP and not self._stop_written:
            with contextlib.suppress(OSError):  # no space for it: said again with the next reply
                write_json(self._run.control, ControlFile(action=ControlAction.STOP))
                self._stop_written = True

    def watch(self, trainer: TrainerProcess | None) -> None:
        """End a trainer that was told to pause and neither saves nor leaves."""
        now = time.monotonic()
        if self._pausing_since is None or trainer is None or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        written = self._newest_write()
        if trainer.is_paused or written != self._written:
            self._alive_at, self._written = now, written
        silent, whole = now - self._alive_at, now - self._pausing_since
        if (silent > SILENCE_SECONDS or whole > MOST_SECONDS) and trainer.poll() is None:
            self._gave_up = True
            trainer.kill()
            EventLog(self._run.events).message(
                f"the trainer was told to pause {whole:.0f} s ago and has not written anything for "
                f"{silent:.0f} s: it was ended without saving, and the job goes on from its last "
                "resume point",
                level="warn",
            )

    def ended_by_pause(self, status: int | None) -> bool:
        """Whether a trainer that left no result, with this status, did what it was told."""
        # Python has no handler for SIGTERM in its first moments.
        return self._gave_up or (self._pausing_since is not None and status == -signal.SIGTERM)

    def _pause(self, trainer: TrainerProcess | None) -> None:
        if trainer is None or trainer.poll() is not None:
            return  # it has done its last step: what it made is being stored
        log.info("told to pause: the trainer saves and leaves")
        self._pausing_since = self._alive_at = time.monotonic()
        trainer.ask_to_stop()

    def _newest_write(self) -> int:
        """When the trainer last wrote something, in ns of the file system's clock."""
        newest = 0
        folder = self._run.root / "checkpoints"
        for path in (self._run.events, folder, *folder.rglob("*")):
            with contextlib.suppress(OSError):  # it has just been renamed or removed
                newest = max(newest, path.stat().st_mtime_ns)
        return newest
