"""Console output of `tunesmith run`: one line per event.

Only runs without a supervisor print to the console. A supervisor reads events.jsonl and not
the console output.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from tunesmith_schema import EventKind, RunEvent, RunResult
from tunesmith_worker.rundir.paths import RunDirectory

METRICS_SECONDS = 1.0
"""Minimum seconds between two lines of metrics."""
Show = Callable[[str], None]
"""Function that prints one line."""


def show_on_stdout(line: str) -> None:
    """Write the line unbuffered. If stdout is a closed pipe, ignore the error, so that training
    continues."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


class ConsoleOutput:
    def __init__(self, show: Show, now: Callable[[], float] = time.monotonic) -> None:
        self._show, self._now = show, now
        self._shown = -METRICS_SECONDS

    def event(self, event: RunEvent) -> None:
        evaluated = {"valid_loss", "valid_reward"} & event.data.keys()
        if event.kind == EventKind.METRICS and not evaluated:
            if self._now() - self._shown < METRICS_SECONDS:
                return
            self._shown = self._now()
        if event.kind == EventKind.SAMPLES:
            return  # the step's metrics are printed instead
        self._show(event.message if event.level == "info" else f"{event.level}: {event.message}")

    def end(self, run: RunDirectory, result: RunResult) -> None:
        """Print the outcome of a run that did not fail; `run.main` prints failures."""
        if result.outcome == "failed":
            return
        parts = [f"{result.outcome} at step {result.step}"]
        if (reward := result.metrics.get("reward")) is not None:
            parts.append(f"reward {reward:.4f}")
        elif (loss := result.metrics.get("train_loss")) is not None:
            parts.append(f"loss {loss:.4f}")
        if result.directory is not None:
            what = "weights" if result.kind == "full" else "adapter"
            parts.append(f"{what} in {run.root / result.directory}")
        self._show(", ".join(parts))
