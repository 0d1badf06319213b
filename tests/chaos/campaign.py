"""Kills processes of one stack while jobs run, lets the jobs finish and checks the outcome."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..end_to_end.service import command_line
from .checks import Weights, database_problems, file_problems, job_problems, weights_of
from .load import Load, Track
from .stack import Stack
from .watch import Watcher

ENDS_AN_ATTEMPT = frozenset({"trainer", "supervisor", "worker"})
IN_TRAINING = 0.8
"""Share of the kills of such processes that happen after some more steps; the others happen within
`STARTS_WITHIN` seconds, mostly before the next attempt's first step."""
STARTS_WITHIN = 5.0
MOST_STEPS = 60
"""Most steps, of all jobs together, between two such kills."""
QUIET_SECONDS = 1.5
"""Most seconds before a kill of another process."""
_PATIENCE = 40.0
"""Seconds after which a kill no longer waits for steps or for its target."""
FINISH_SECONDS = 400.0


@dataclass
class Result:
    """Outcome of one stack's kills."""

    stack: str
    kills: Counter[str]
    kill_seconds: float
    jobs: int = 0
    attempts: int = 0
    events: int = 0
    files: int = 0
    exits: list[str] = field(default_factory=list)
    """Ends of processes that no kill explains."""
    problems: list[str] = field(default_factory=list)


class Campaign:
    """Kills on one stack. `expected` has the weights of the recipes' jobs that were left alone, and
    gets those of new recipes."""

    def __init__(
        self,
        stack: Stack,
        rows: Path,
        recipes: list[str],
        *,
        seed: int,
        expected: dict[str, Weights],
        tell: Callable[[str], object],
    ) -> None:
        self._stack, self._rows, self._tell = stack, rows, tell
        self._random, self._expected = random.Random(f"{seed} {stack.name}"), expected
        self._client = stack.client()
        self._load = Load(self._client, rows, recipes, stack.train_workers + 1)
        self._watcher = Watcher(stack.runs)

    def run(self, kills: int) -> Result:
        load = self._load
        load.start()
        with self._watcher:
            began, hit = time.monotonic(), Counter[str]()
            for number, target in enumerate(self._order(kills), 1):
                where = self._kill(target)
                hit[target] += bool(where)
                at = time.monotonic() - began
                self._tell(f"{number:4} {at:7.1f} s  {self._stack.name:8} {target:10} {where}")
            result = Result(self._stack.name, hit, round(time.monotonic() - began, 1))
            load.finish()
            killed = list(load.tracks)
            self._wait_for(killed)
            for recipe in dict.fromkeys(track.recipe for track in killed):
                if recipe not in self._expected:
                    self._expected[recipe] = self._left_alone(recipe)
        assert self._watcher.looks > 10, "the watcher did not run"
        result.problems += self._problems(killed)
        result.exits = self._stack.exits()
        result.jobs, result.files = len(killed), len(load.files)
        result.attempts = sum(_claims(track) for track in killed)
        result.events = sum(len(track.events) for track in killed)
        return result

    def _order(self, kills: int) -> Iterator[str]:
        """Yield the targets in rounds of random order, so that each gets the same share."""
        targets: list[str] = []
        for _ in range(kills):
            if not targets:
                targets = self._random.sample(self._stack.targets, len(self._stack.targets))
            yield targets.pop()

    def _kill(self, target: str) -> str:
        """Kill a process of the target at a random moment; return what was hit."""
        self._wait(target)
        deadline, choice = time.monotonic() + _PATIENCE, self._random.random()
        while time.monotonic() < deadline:
            if pids := self._stack.pids(target):
                pid = pids[int(choice * len(pids))]
                what = command_line(pid).strip()[-60:]
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                jobs = ", ".join(f"{t.recipe} {t.step}" for t in self._load.unfinished())
                return f"pid {pid} ...{what}  [{jobs}]"
            time.sleep(0.02)
        return ""

    def _wait(self, target: str) -> None:
        in_training, share = self._random.random() < IN_TRAINING, self._random.random()
        if target == "light":
            self._load.ask_for_file()
        if target not in ENDS_AN_ATTEMPT:
            time.sleep(share * QUIET_SECONDS)
        elif not in_training:
            time.sleep(share * STARTS_WITHIN)
        else:
            goal = self._load.steps() + 1 + share * MOST_STEPS
            deadline = time.monotonic() + _PATIENCE
            while self._load.steps() < goal and time.monotonic() < deadline:
                time.sleep(0.02)

    def _wait_for(self, tracks: list[Track]) -> None:
        deadline = time.monotonic() + FINISH_SECONDS
        while time.monotonic() < deadline and not all(track.has_ended for track in tracks):
            time.sleep(0.1)

    def _left_alone(self, recipe: str) -> Weights:
        """Return the weights of a job that succeeded in one attempt, so that it never resumed.
        Train one if there is none. Other processes may have been killed while the job ran."""
        done = [
            track
            for track in self._load.tracks
            if track.recipe == recipe and track.state == "succeeded" and _claims(track) == 1
        ]
        track = done[0] if done else self._load.create(recipe)
        self._wait_for([track])
        job = self._client.fine_tuning.jobs.retrieve(track.job_id)
        return weights_of(self._client, job)

    def _problems(self, tracks: list[Track]) -> Iterator[str]:
        for track in tracks:
            seen = self._watcher.together[track.job_id]
            expected = self._expected[track.recipe]
            folder = self._stack.root / "results"
            for problem in job_problems(self._client, track, expected, seen, folder):
                yield f"{track.job_id} ({track.recipe}): {problem}"
        yield from database_problems(self._stack.database_url, self._load.tracks)
        rows = len(self._rows.read_text().splitlines())
        yield from file_problems(self._client, self._load.files, rows)
        yield from self._load.errors


def _claims(track: Track) -> int:
    return sum(event.data.get("state") == "running" for event in track.events)
