"""Wall time by phase: every moment belongs to exactly one, so the phases sum to the whole.

Does not know torch: a device that works on while the host goes on brings a timeline of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tunesmith_schema import COMPUTE, PhaseName

Charge = Callable[[str, float], None]
"""Books seconds on a phase."""


class Timeline(Protocol):
    """Books the host's spans once it is known what the device did meanwhile."""

    def switched(self, ended: str, seconds: float, begins: str) -> None:
        """The host has left `ended`, in which it was for `seconds`, and is in `begins` now."""

    def finish(self, seconds: float) -> None:
        """Wait for the device and book everything, `seconds` in all since the start."""


class WallClock:
    """Starts in the phase `other`. `now` gives seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = self._since = now()
        self._spent: dict[str, float] = {}
        self._timeline: Timeline | None = None
        self._timeline_began = 0.0
        self.phase: str = PhaseName.OTHER
        """What the time goes to now."""
        self.computed: Callable[[str, float], None] = lambda phase, seconds: None
        """Told of each forward, backward and optimiser step once its duration is known."""

    def switch(self, phase: str) -> str:
        """From here on time goes to `phase`; gives the one before."""
        now, ended = self._now(), self.phase
        if self._timeline is None:
            self.charge(ended, now - self._since)
        else:
            self._timeline.switched(ended, now - self._since, phase)
        self._since, self.phase = now, phase
        return ended

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Time goes to `phase` in here, and then again to the one before."""
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
        """A part of what `phase` was charged with belongs to another one."""
        self._spent[phase] = self._spent.get(phase, 0.0) - seconds
        self._spent[to] = self._spent.get(to, 0.0) + seconds

    def follow(self, timeline: Timeline) -> None:
        """Let `timeline` do the booking until `unfollow`."""
        self.switch(self.phase)
        self._timeline, self._timeline_began = timeline, self._now()

    def unfollow(self) -> None:
        if self._timeline is not None:
            self.switch(self.phase)
            self._timeline.finish(self._now() - self._timeline_began)
            self._timeline, self._since = None, self._now()

    @property
    def wall(self) -> float:
        """Seconds since the start."""
        return self._now() - self._began

    def read(self) -> dict[str, float]:
        """Seconds by phase until now. What is not booked yet counts to the present phase."""
        spent = dict(self._spent)
        missing = self.wall - sum(spent.values())
        spent[self.phase] = spent.get(self.phase, 0.0) + missing
        return spent
