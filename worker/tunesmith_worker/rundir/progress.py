"""Progress marks: the trainer touches a file of the run directory while it works.

The supervisor reads the file's modification time. A trainer that does not touch the file for a
long time is stalled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

MARK_SECONDS = 1.0
"""Minimum seconds between two writes of the file that marks progress."""


class ProgressMark:
    """Writer of progress marks. `mark` touches the file at most once per MARK_SECONDS; all other
    calls only read the clock."""

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = path, now
        self._next = now()

    def mark(self) -> None:
        """Record that the run has advanced: a new phase, micro-batch, token or evaluated batch."""
        if self._now() < self._next:
            return
        self._next = self._now() + MARK_SECONDS
        with contextlib.suppress(OSError):  # a full disk must not end the run
            self._path.touch()
