"""Kills until enough of them have hit, then lets the job finish and judges how it ended."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tunesmith
from tunesmith_schema import TERMINAL, EventKind, JobState

from ..end_to_end.service import Service, until
from .watch import Watcher

VICTIMS: dict[str, Callable[[Service], int]] = {
    "trainer": lambda service: service.trainers()[0],
    "supervisor": lambda service: service.worker_child(),
    "worker": lambda service: service.worker_main(),
}
"""Who is killed, by pid."""

ENV = {
    "TUNESMITH_LEASE_SECONDS": "4",
    "TUNESMITH_JANITOR_SECONDS": "0.5",
    "TUNESMITH_MAX_LOSSES": "1000",
    "TUNESMITH_RETRY_SECONDS": "0.1",
}
_COMMON: dict[str, Any] = {
    "max_steps": 500,
    "save_steps": 7,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
}
_FULL = _COMMON | {"tuning": "full", "packing": False}
_DRAWN = {"num_generations": 4, "prompts_per_step": 2, "max_completion_length": 24}
_GRPO: dict[str, Any] = {
    "max_steps": 60,
    "save_steps": 7,
    "learning_rate": 1e-3,
    "self_check": False,
    "lora": {"r": 4},
}
GRADER = {"type": "length", "unit": "characters", "target": 4, "limit": 40}
"""Of the recipes with `grpo`: a reward that a random model's completions do not all share."""
RECIPES: dict[str, dict[str, Any]] = {
    "lora": _COMMON | {"packing": False, "lora": {"r": 4, "lora_dropout": 0.1}},
    "lora packed": _COMMON | {"packing": True, "max_seq_length": 128, "lora": {"r": 4}},
    "lora stock": _COMMON | {"packing": False, "patches": "off", "lora": {"r": 4}},
    "full fp32": _FULL | {"precision": "fp32"},
    "full bf16": _FULL | {"precision": "bf16"},
    "full bf16_split_master": _FULL | {"precision": "bf16_split_master"},
    "full bf16_sr8": _FULL | {"precision": "bf16_sr8"},
    "full packed": _FULL | {"packing": True, "max_seq_length": 128},
    "grpo lora": _GRPO | {"grpo": _DRAWN},
    "grpo thrice": _GRPO | {"grpo": _DRAWN | {"num_iterations": 3, "beta": 0.1}},
    "grpo bf16_split_master": _GRPO
    | {"grpo": _DRAWN, "tuning": "full", "lora": None, "precision": "bf16_split_master"},
}
SEED = 11
IN_TRAINING = 0.8
"""Share of the kills."""
STARTS_WITHIN = 1.0
"""Seconds that a trainer may take for what comes before its training, more or less."""


@dataclass
class Ending:
    """How one job ended, and what was wrong with that."""

    recipe: str
    victim: str
    hits: int
    resumed: int
    """Attempts that went on from a step beyond 0."""
    seconds: float
    problems: list[str] = field(default_factory=list)


class Campaign:
    def __init__(self, service: Service, rows: Path, *, seed: int) -> None:
        self._service, self._random = service, random.Random(seed)
        self._client = service.client()
        self._file = self._client.files.create(file=rows)
        self._client.files.wait_for_processing(self._file.id, timeout=60)
        self._expected: dict[str, dict[str, str]] = {}
        self.watcher = Watcher(service.data_dir / "runs")

    def torment(self, victim: str, recipe: str, kills: int) -> Ending:
        """One job, killed `kills` times at random moments of its life, then left alone."""
        weights = self._undisturbed(recipe)
        began = time.monotonic()
        job = self._create(recipe)
        hits = 0
        while hits < kills and job.refresh().state not in TERMINAL:
            until(lambda: self._service.trainers() or job.refresh().state in TERMINAL, 90)
            self._wait(job, RECIPES[recipe]["max_steps"])
            try:
                pid = VICTIMS[victim](self._service)
            except IndexError:  # between two of them: nobody to hit
                continue
            attempt = job.refresh().attempt
            if job.state is not JobState.RUNNING:
                continue
            os.kill(pid, signal.SIGKILL)
            hits += 1
            until(lambda: job.refresh().attempt > attempt or job.state in TERMINAL, 90)  # noqa: B023  # called at once
        until(lambda: job.refresh().state in TERMINAL, 180)
        return Ending(
            recipe,
            victim,
            hits,
            sum(1 for event in self._events(job, EventKind.RESUMED) if event["step"]),
            round(time.monotonic() - began, 1),
            list(self._problems(job, weights, RECIPES[recipe])),
        )

    def _wait(self, job: tunesmith.Job, steps: int) -> None:
        """Until a moment of its life: mostly somewhere in its training, else anywhere before."""
        if self._random.random() < IN_TRAINING:
            step = self._random.randint(1, steps // 2)  # a second later it may be over
            until(lambda: job.refresh().step >= step or job.state in TERMINAL, 90)
        else:
            time.sleep(self._random.uniform(0.0, STARTS_WITHIN))

    def _undisturbed(self, recipe: str) -> dict[str, str]:
        """Hashes of what the recipe makes when left alone."""
        if recipe not in self._expected:
            job = self._create(recipe)
            until(lambda: self._service.trainers() or job.refresh().state in TERMINAL, 90)
            until(lambda: job.refresh().state in TERMINAL, 180)
            assert job.state is JobState.SUCCEEDED, job.error
            self._expected[recipe] = self._weights(job)
        return self._expected[recipe]

    def _create(self, recipe: str) -> tunesmith.Job:
        return self._client.fine_tuning.jobs.create(
            model="tiny",
            training_file=self._file.id,
            seed=SEED,
            recipe=RECIPES[recipe],
            grader=GRADER if "grpo" in RECIPES[recipe] else None,
        )

    def _weights(self, job: tunesmith.Job) -> dict[str, str]:
        assert job.adapter_id is not None
        adapter = self._client.adapters.retrieve(job.adapter_id)
        return {f.name: f.sha256 for f in adapter.files if f.name.endswith(".safetensors")}

    def _events(self, job: tunesmith.Job, kind: EventKind) -> list[dict[str, Any]]:
        return [event.data for event in job.stream() if event.kind == kind]

    def _problems(
        self, job: tunesmith.Job, weights: dict[str, str], recipe: dict[str, Any]
    ) -> Iterator[str]:
        if job.state is not JobState.SUCCEEDED:
            yield f"{job.id} {job.state}: {job.error.message if job.error else 'no error given'}"
            return
        if self._weights(job) != weights:
            yield f"{job.id}: other weights than undisturbed"
        events = list(job.stream())
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            yield f"{job.id}: event numbers have a gap or a double"
        ends = [e.data["state"] for e in events if e.kind == EventKind.STATE]
        if [state for state in ends if state in TERMINAL] != [JobState.SUCCEEDED]:
            yield f"{job.id}: states were told as {ends}"
        steps = list(range(1, recipe["max_steps"] + 1))
        if (points := [point.step for point in job.metrics()]) != steps:
            yield f"{job.id}: metrics of steps {_odd(points, steps)}"
        if (told := _steps_that_count(events)) != steps:
            yield f"{job.id}: events tell steps {_odd(told, steps)}"
        if "grpo" in recipe and (odd := _odd_samples(job, recipe)):
            yield f"{job.id}: {odd}"
        if (together := self.watcher.together[job.id]) != 1:
            yield f"{job.id}: {together} trainers alive at once"


def _steps_that_count(events: list[tunesmith.Event]) -> list[int]:
    """Of the metrics told, those that no later resumption has taken back."""
    told: list[int] = []
    for event in events:
        step = event.data.get("step")
        if event.kind == EventKind.RESUMED and isinstance(step, int):
            told = [one for one in told if one <= step]
        elif event.kind == EventKind.METRICS and isinstance(step, int):
            told.append(step)
    return told


def _odd_samples(job: tunesmith.Job, recipe: dict[str, Any]) -> str:
    """What is wrong with a reinforcement job's samples; empty when nothing is."""
    grpo = recipe["grpo"]
    found = list(job.samples())
    if len({sample.id for sample in found}) != len(found):
        return "samples are told twice"
    drawn = range(1, recipe["max_steps"] + 1, grpo.get("num_iterations", 1))
    expected = dict.fromkeys(drawn, grpo["num_generations"] * grpo["prompts_per_step"])
    counted = Counter(sample.step for sample in found)
    return "" if counted == expected else f"samples by step: {sorted(counted.items())}"


def _odd(steps: list[int], expected: list[int]) -> str:
    """What is wrong with a list that should be 1, 2, 3, ..."""
    missing = sorted(set(expected) - set(steps))
    double = sorted({step for step in steps if steps.count(step) > 1})
    return f"(missing {missing[:5]}, double {double[:5]}, in order: {steps == sorted(steps)})"
