"""Time that an evaluation may take."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.06
"""Planned duration of the evaluation, as a share of the trainer's time so far.

Parts of the evaluation may take longer than planned. The whole evaluation may take up to a tenth of
the trainer's time.
"""
LEAST_SECONDS = 2.0
"""Minimum of the planned duration in seconds, for short runs."""
LATER = 1.5
"""Factor for the time limit of each model after the first: the limit is at least LATER times the
first model's time for the same rows.

At its time limit, a model gets no more rows. The models are compared only on rows that all models
received.
"""
ALWAYS = 2
"""Number of models that are measured even if no time is left, because the verdict compares two
models."""
NO_TIME = "no time was left"


class Budget:
    def __init__(
        self,
        job_seconds: float = 0.0,
        *,
        seconds: float | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        mark: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`job_seconds`: trainer's time so far. `seconds`: planned duration; the default is a share
        of `job_seconds`. `stop_requested`: function that returns True if the evaluation should end
        soon. `mark`: function to call whenever the evaluation makes progress."""
        self.job_seconds = job_seconds
        self.seconds = max(LEAST_SECONDS, SHARE * job_seconds) if seconds is None else seconds
        self._stop_requested, self._mark, self._now = stop_requested, mark, now
        self._began = now()

    @property
    def spent(self) -> float:
        """Seconds since the start of the evaluation."""
        return self._now() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left; 0 if the evaluation should end."""
        self._mark()
        return 0.0 if self._stop_requested() else max(0.0, self.seconds - self.spent)

    def at_most(self, seconds: float) -> Callable[[], bool]:
        """Return a function that returns True after `seconds`, or if the evaluation should end."""
        end = self.spent + seconds
        return lambda: self.spent >= end or self._must_stop()

    def _must_stop(self) -> bool:
        self._mark()
        return self._stop_requested()

    def part(self, share: float) -> Callable[[], bool]:
        """Return a function that returns True after `share` of the remaining time has passed."""
        end = self.spent + share * self.left
        return lambda: self.spent >= end or self.left == 0.0
