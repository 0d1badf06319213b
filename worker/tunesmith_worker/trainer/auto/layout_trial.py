"""Which layout is fastest, found by training the first steps under each in turn.

Every step trains what it would have trained anyway, so that a trial costs no more than the slower
candidates' extra time. Pure: fed with what each step took.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Self  # Any: JSON

WORTH_ANOTHER_LOOK = (1.3, 1.15, 1.15, 1.08, 1.08)
"""Candidates within this factor of the best are measured again, after each round."""
MOST_ROUNDS = 24
"""While steps of unlike rows leave open which candidate is faster."""
MANY = 8
HOPELESS = 1.6
"""A first step that is so much slower than the best candidate settles it."""
BETTER = 0.98
"""The first candidate is kept unless another takes less than this share of its time."""


class LayoutTrial:
    def __init__(self, slots_per_token: dict[str, float], *, slow_start: str = "") -> None:
        """By name of the candidate; the first is the one to keep when none is faster.
        `slow_start`: one whose first step says nothing of the others."""
        self._slow_start = slow_start
        self._ratios = slots_per_token
        self._seconds: dict[str, list[float]] = {name: [] for name in slots_per_token}
        self._warm: set[str] = set()
        self._alive = list(slots_per_token)
        self._queue = [name for name in slots_per_token for _ in range(2)]
        self._rounds = 0
        self.steps: list[str] = []
        """The candidate of each step so far."""

    def state(self) -> dict[str, Any]:
        """As JSON; what it holds must not be changed."""
        return {
            "slow_start": self._slow_start,
            "ratios": self._ratios,
            "seconds": self._seconds,
            "warm": sorted(self._warm),
            "alive": self._alive,
            "queue": self._queue,
            "rounds": self._rounds,
            "steps": self.steps,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """To go on with in another process, where the first step of each pays anew: it does not
        count, and each that was to be measured is measured once more."""
        trial = cls(state["ratios"], slow_start=state["slow_start"])
        trial._seconds, trial._alive = state["seconds"], state["alive"]
        trial._rounds, trial.steps = state["rounds"], state["steps"]
        again = [name for name in dict.fromkeys(state["queue"]) if name in state["warm"]]
        trial._warm = set(state["warm"]) - set(again)
        trial._queue = again + state["queue"]
        return trial

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._ratios)

    @property
    def running(self) -> bool:
        return bool(self._queue)

    @property
    def current(self) -> str:
        """The candidate whose step it is; the fastest once the trial is over."""
        return self._queue[0] if self._queue else self._fastest()

    def record(self, seconds: float, slots: int) -> None:
        """What the current candidate's step took, for so many slots."""
        name = self._queue.pop(0)
        self.steps.append(name)
        cost = seconds / slots * self._ratios[name]
        if name in self._warm:
            self._seconds[name].append(cost)
        else:  # the first step of each pays for what is made once
            self._warm.add(name)
            if cost > HOPELESS * self._best() and name != self._slow_start:
                self._queue = [other for other in self._queue if other != name]
                self._alive.remove(name)
                self._seconds[name].append(cost)
        if not self._queue:
            self._next_round()

    def remove(self, name: str) -> None:
        """That one cannot be run: not the first, which the others are held against."""
        self._queue = [other for other in self._queue if other != name]
        self._alive = [other for other in self._alive if other != name] or [
            next(iter(self._ratios))
        ]
        self._seconds[name].clear()
        if not self._queue:
            self._next_round()

    def tokens_per_second(self) -> dict[str, float]:
        """Of each candidate; the data's tokens, padding not counted."""
        return {name: 1 / self._cost(name) for name, took in self._seconds.items() if took}

    def _next_round(self) -> None:
        looks = WORTH_ANOTHER_LOOK
        limit = looks[min(self._rounds, len(looks) - 1)] * self._best()
        self._alive = [name for name in self._alive if self._cost(name) <= limit]
        self._rounds += 1
        if len(self._alive) < 2:
            return
        if self._rounds <= len(looks) or (self._rounds < MOST_ROUNDS and self._open()):
            self._queue = list(self._alive)

    def _open(self) -> bool:
        """Whether the two fastest are no farther apart than chance may put them."""
        first, second = sorted(self._alive, key=self._cost)[:2]
        error = math.hypot(*(self._error(name) for name in (first, second)))
        return self._cost(second) - self._cost(first) < 2 * error

    def _error(self, name: str) -> float:
        """Standard error of the cost, as that of a mean."""
        took = self._seconds[name]
        return statistics.stdev(took) / math.sqrt(len(took))

    def _cost(self, name: str) -> float:
        """The median of few steps; the mean of many, but for the quickest and the slowest."""
        took = sorted(self._seconds[name])
        return statistics.mean(took[1:-1]) if len(took) >= MANY else statistics.median(took)

    def _best(self) -> float:
        return min((self._cost(name) for name, took in self._seconds.items() if took), default=1e30)

    def _fastest(self) -> str:
        first = self._alive[0]
        return min(self._alive, key=lambda n: self._cost(n) / (1 if n == first else BETTER))
