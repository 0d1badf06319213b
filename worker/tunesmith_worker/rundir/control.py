"""Handle requests to end a run: SIGTERM (save and exit) and control.json (cancel or stop).

During training, the trainer's callback reads `stop_requested` and saves a resume point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from pydantic import JsonValue, ValidationError

from tunesmith_schema import EXIT_STOPPED, ControlAction, ControlFile, RunResult

from .paths import RunDirectory, remove_unfinished, write_json


@dataclass(frozen=True, kw_only=True)
class EarlyEnd:
    """Reason why a run ends before its last step and keeps its result."""

    text: str
    """Text that continues the sentence "stopped ..."."""
    data: dict[str, JsonValue] = field(default_factory=dict)
    """Figures for the event."""


_BY_REQUEST = EarlyEnd(text="by request")


class StopControl:
    def __init__(self, run: RunDirectory, before_exit: Callable[[], None]) -> None:
        self._run, self._before_exit = run, before_exit
        self._step: int | None = None
        self.stop_requested = False
        """True if the trainer must save and exit after this step, to continue the job later."""
        self.end_requested = False
        """True if training must end after this step, with a result.

        If SIGTERM arrives too, the run obeys SIGTERM.
        """
        self.early_end = _BY_REQUEST
        """Reason for `end_requested`."""
        self.time_limit: Callable[[], EarlyEnd | None] = lambda: None
        """Function that returns a reason to end the run after this step, if any."""
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def training_begins(self) -> None:
        """Record the start of training. During training, SIGTERM takes effect at the end of a
        step."""
        self._step = 0

    def step_ended(self, step: int) -> None:
        """Exit if the job is cancelled. If nobody has requested an end, a check costs one `stat`
        call."""
        self._step = step
        action = self._requested_action()
        if action == ControlAction.CANCEL:
            self._exit()
        early_end = _BY_REQUEST if action == ControlAction.STOP else self.time_limit()
        self.end_requested = early_end is not None and not self.stop_requested
        self.early_end = early_end or self.early_end

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        if self._step is None or self._requested_action() == ControlAction.CANCEL:
            self._exit()

    def _requested_action(self) -> ControlAction | None:
        if not self._run.control.exists():
            return None
        try:
            return ControlFile.model_validate_json(self._run.control.read_bytes()).action
        except ValidationError:  # an incomplete file is read again after the next step
            return None

    def _exit(self) -> None:
        remove_unfinished(self._run.root)
        # Use os._exit, because an import of an optional package could catch an exception.
        self._before_exit()
        write_json(self._run.result, RunResult(outcome="stopped", step=self._step or 0))
        os._exit(EXIT_STOPPED)
