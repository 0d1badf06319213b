"""A trial that finds the fastest layout by training the first steps with each in turn.

Every step trains the rows it would have trained anyway, so a trial costs only the extra time of
slower candidates. The trial does no timing; it receives the time of each step.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Self  # Any: JSON

WORTH_ANOTHER_LOOK = (1.3, 1.15, 1.15, 1.08, 1.08)
"""After each round, candidates within this factor of the best are measured again."""
MOST_ROUNDS = 24
"""Most rounds while the difference between candidates is within noise."""
MANY = 8
"""Steps from which the cost is a trimmed mean instead of a median."""
HOPELESS = 1.6
"""A candidate whose first step is slower than the best by this factor is dropped."""
BETTER = 0.98
"""The first candidate is kept unless another takes less than this fraction of its time."""


class LayoutTrial:
    def __init__(self, slots_per_token: dict[str, float], *, slow_start: str = "") -> None:
        """`slots_per_token`: by candidate; the first is kept if none is faster. `slow_start`: a
        candidate whose first step is slow once and must not drop it."""
        self._slow_start = slow_start
        self._ratios = slots_per_token
        self._seconds: dict[str, list[float]] = {name: [] for name in slots_per_token}
        self._warm: set[str] = set()
        self._remaining = list(slots_per_token)
        self._queue = [name for name in slots_per_token for _ in range(2)]
        self._rounds = 0
        self.steps: list[str] = []
        """Candidate of each step so far."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON; callers must not change it."""
        return {
            "slow_start": self._slow_start,
            "ratios": self._ratios,
            "seconds": self._seconds,
            "warm": sorted(self._warm),
            "alive": self._remaining,
            "queue": self._queue,
            "rounds": self._rounds,
            "steps": self.steps,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Restore a trial in a new process.

        The first step of each candidate is slow again there and does not count: each queued
        candidate gets one more step."""
        trial = cls(state["ratios"], slow_start=state["slow_start"])
        trial._seconds, trial._remaining = state["seconds"], state["alive"]
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
        """Candidate of the current step; the fastest candidate after the trial."""
        return self._queue[0] if self._queue else self._fastest()

    def record(self, seconds: float, slots: int) -> None:
        """Record the current candidate's step: its seconds and computed slots."""
        name = self._queue.pop(0)
        self.steps.append(name)
        cost = seconds / slots * self._ratios[name]
        if name in self._warm:
            self._seconds[name].append(cost)
        else:  # the first step includes one-time costs
            self._warm.add(name)
            if cost > HOPELESS * self._best() and name != self._slow_start:
                self._queue = [queued for queued in self._queue if queued != name]
                self._remaining.remove(name)
                self._seconds[name].append(cost)
        if not self._queue:
            self._next_round()

    def remove(self, name: str) -> None:
        """Drop a candidate that cannot run. The first candidate always remains."""
        self._queue = [queued for queued in self._queue if queued != name]
        self._remaining = [left for left in self._remaining if left != name] or [
            next(iter(self._ratios))
        ]
        self._seconds[name].clear()
        if not self._queue:
            self._next_round()

    def tokens_per_second(self) -> dict[str, float]:
        """Return the data tokens per second of each candidate, without padding."""
        return {name: 1 / self._cost(name) for name, costs in self._seconds.items() if costs}

    def _next_round(self) -> None:
        looks = WORTH_ANOTHER_LOOK
        limit = looks[min(self._rounds, len(looks) - 1)] * self._best()
        self._remaining = [name for name in self._remaining if self._cost(name) <= limit]
        self._rounds += 1
        if len(self._remaining) < 2:
            return
        if self._rounds <= len(looks) or (self._rounds < MOST_ROUNDS and self._undecided()):
            self._queue = list(self._remaining)

    def _undecided(self) -> bool:
        """Return True if the two fastest differ by less than two standard errors."""
        first, second = sorted(self._remaining, key=self._cost)[:2]
        error = math.hypot(*(self._error(name) for name in (first, second)))
        return self._cost(second) - self._cost(first) < 2 * error

    def _error(self, name: str) -> float:
        """Return the standard error of the cost, computed as for a mean."""
        costs = self._seconds[name]
        return statistics.stdev(costs) / math.sqrt(len(costs))

    def _cost(self, name: str) -> float:
        """Return the median of few steps, or the mean of many without fastest and slowest."""
        costs = sorted(self._seconds[name])
        return statistics.mean(costs[1:-1]) if len(costs) >= MANY else statistics.median(costs)

    def _best(self) -> float:
        costs = (self._cost(name) for name, steps in self._seconds.items() if steps)
        return min(costs, default=1e30)

    def _fastest(self) -> str:
        first = self._remaining[0]
        return min(self._remaining, key=lambda n: self._cost(n) / (1 if n == first else BETTER))
