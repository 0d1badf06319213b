"""Measure the wall time of each phase.

Each moment belongs to one phase, so the times of all phases sum to the total time.

For a device that runs asynchronously, a `Timeline` assigns the time to phases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tunesmith_schema import COMPUTE, PhaseName

Charge = Callable[[str, float], None]
"""Function that adds seconds to a phase."""


class Timeline(Protocol):
    """Assigns the host's time to phases once the durations of the device's work are known."""

    def switched(self, ended: str, seconds: float, begins: str) -> None:
        """Record a change of phase. The phase `ended` took `seconds` on the host."""

    def finish(self, seconds: float) -> None:
        """Wait for the device, then assign the whole time to the phases.

        `seconds`: the host's time since the timeline began."""


class WallClock:
    """Clock that starts in the phase `other`. `now` returns the time in seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = self._since = now()
        self._spent: dict[str, float] = {}
        self._timeline: Timeline | None = None
        self._timeline_began = 0.0
        self.phase: str = PhaseName.OTHER
        """Current phase."""
        self.computed: Callable[[str, float], None] = lambda phase, seconds: None
        """Function called with the phase and seconds of each forward, backward and optimiser
        step."""
        self.mark: Callable[[], None] = lambda: None
        """Function called at each phase change, and also during long phases."""

    def switch(self, phase: str) -> str:
        """Change to `phase`; return the previous phase."""
        self.mark()
        now, ended = self._now(), self.phase
        if self._timeline is None:
            self.charge(ended, now - self._since)
        else:
            self._timeline.switched(ended, now - self._since, phase)
        self._since, self.phase = now, phase
        return ended

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Change to `phase` within this block."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def charge(self, phase: str, seconds: float) -> None:
        self._spent[phase] = self._spent.get(phase, 0.0) + seconds
        if phase in COMPUTE:
            self.computed(phase, seconds)

    def move(self, phase: str, to: str, seconds: float) -> None:
        """Reassign seconds from `phase` to the phase `to`."""
        self._spent[phase] = self._spent.get(phase, 0.0) - seconds
        self._spent[to] = self._spent.get(to, 0.0) + seconds

    def follow(self, timeline: Timeline) -> None:
        """Let `timeline` assign the time to phases until `unfollow` is called."""
        self.switch(self.phase)
        self._timeline, self._timeline_began = timeline, self._now()

    def unfollow(self) -> None:
        if self._timeline is not None:
            self.switch(self.phase)
            self._timeline.finish(self._now() - self._timeline_began)
            self._timeline, self._since = None, self._now()

    @property
    def wall(self) -> float:
        """Seconds since the clock's start."""
        return self._now() - self._began

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase. Unassigned time counts for the current phase."""
        spent = dict(self._spent)
        missing = self.wall - sum(spent.values())
        spent[self.phase] = spent.get(self.phase, 0.0) + missing
        return spent
