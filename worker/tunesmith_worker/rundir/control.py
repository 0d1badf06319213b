"""How a run is told to stop: SIGTERM (leave cleanly) and control.json (leave at once, or end here).

Does not save anything itself: once training has begun, the callback acts on `stop_requested`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from pydantic import ValidationError

from tunesmith_schema import EXIT_STOPPED, ControlAction, ControlFile, RunResult

from .paths import RunDirectory, remove_unfinished, write_json


class StopControl:
    def __init__(self, run: RunDirectory, before_leaving: Callable[[], None]) -> None:
        self._run, self._before_leaving = run, before_leaving
        self._step: int | None = None
        self.stop_requested = False
        """Leave at the step's end; the job is not over."""
        self.end_requested = False
        """The step that has just ended is to be the last; SIGTERM goes before."""
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def training_begins(self) -> None:
        """From here on there is something worth saving: SIGTERM waits for the step's end."""
        self._step = 0

    def step_ended(self, step: int) -> None:
        """Leave if cancelled. Costs one `stat` while nobody has asked for anything."""
        self._step = step
        asked = self._asked()
        if asked == ControlAction.CANCEL:
            self._leave()
        self.end_requested = asked == ControlAction.STOP and not self.stop_requested

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        if self._step is None or self._asked() == ControlAction.CANCEL:
            self._leave()

    def _asked(self) -> ControlAction | None:
        if not self._run.control.exists():
            return None
        try:
            return ControlFile.model_validate_json(self._run.control.read_bytes()).action
        except ValidationError:  # half written: the next step looks again
            return None

    def _leave(self) -> None:
        remove_unfinished(self._run.root)
        # _exit, because a signal may arrive in the middle of an import, where raising would be
        # caught by whoever tries optional packages.
        self._before_leaving()
        write_json(self._run.result, RunResult(outcome="stopped", step=self._step or 0))
        os._exit(EXIT_STOPPED)
