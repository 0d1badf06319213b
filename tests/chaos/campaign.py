"""Kills processes of a job, lets the job finish and checks the outcome."""

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
"""Functions that return the pid of each victim."""

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
"""Grader of the recipes with `grpo`: rewards of a random model's completions differ."""
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
"""Share of the kills that happen during training."""
STARTS_WITHIN = 1.0
"""Approximate seconds from a trainer's start to its first step."""


@dataclass
class Ending:
    """Outcome of one job, with its problems."""

    recipe: str
    victim: str
    hits: int
    resumed: int
    """Number of attempts that resumed from a step after 0."""
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
        """Run one job, kill the victim `kills` times at random times, then let the job finish."""
        weights = self._undisturbed(recipe)
        began = time.monotonic()
        job = self._create(recipe)
        hits = 0
        while hits < kills and job.refresh().state not in TERMINAL:
            until(lambda: self._service.trainers() or job.refresh().state in TERMINAL, 90)
            self._wait(job, RECIPES[recipe]["max_steps"])
            try:
                pid = VICTIMS[victim](self._service)
            except IndexError:  # the victim is restarting
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
        """Wait until a random time, mostly during training, otherwise before training."""
        if self._random.random() < IN_TRAINING:
            # Only in the first half: the kill comes later, and the job must still be running then.
            step = self._random.randint(1, steps // 2)
            until(lambda: job.refresh().step >= step or job.state in TERMINAL, 90)
        else:
            time.sleep(self._random.uniform(0.0, STARTS_WITHIN))

    def _undisturbed(self, recipe: str) -> dict[str, str]:
        """Return the hashes of the recipe's weights after a run without kills."""
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
            yield f"{job.id}: weights differ from the undisturbed run"
        events = list(job.stream())
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            yield f"{job.id}: event numbers have gaps or duplicates"
        ends = [e.data["state"] for e in events if e.kind == EventKind.STATE]
        if [state for state in ends if state in TERMINAL] != [JobState.SUCCEEDED]:
            yield f"{job.id}: reported states {ends}"
        steps = list(range(1, recipe["max_steps"] + 1))
        if (points := [point.step for point in job.metrics()]) != steps:
            yield f"{job.id}: steps of the metrics {_odd(points, steps)}"
        if (reported := _valid_steps(events)) != steps:
            yield f"{job.id}: steps of the events {_odd(reported, steps)}"
        if "grpo" in recipe and (odd := _odd_samples(job, recipe)):
            yield f"{job.id}: {odd}"
        if (together := self.watcher.together[job.id]) != 1:
            yield f"{job.id}: {together} trainers alive at the same time"


def _valid_steps(events: list[tunesmith.Event]) -> list[int]:
    """Return the steps of the metrics events, without steps that a later attempt repeated."""
    steps: list[int] = []
    for event in events:
        step = event.data.get("step")
        if event.kind == EventKind.RESUMED and isinstance(step, int):
            steps = [done for done in steps if done <= step]
        elif event.kind == EventKind.METRICS and isinstance(step, int):
            steps.append(step)
    return steps


def _odd_samples(job: tunesmith.Job, recipe: dict[str, Any]) -> str:
    """Describe the problem with the samples of a reinforcement job; empty if there is none."""
    grpo = recipe["grpo"]
    samples = list(job.samples())
    if len({sample.id for sample in samples}) != len(samples):
        return "samples are reported twice"
    drawn = range(1, recipe["max_steps"] + 1, grpo.get("num_iterations", 1))
    expected = dict.fromkeys(drawn, grpo["num_generations"] * grpo["prompts_per_step"])
    counted = Counter(sample.step for sample in samples)
    return "" if counted == expected else f"samples by step: {sorted(counted.items())}"


def _odd(steps: list[int], expected: list[int]) -> str:
    """Describe how `steps` differs from `expected`."""
    missing = sorted(set(expected) - set(steps))
    repeated = sorted({step for step in steps if steps.count(step) > 1})
    return f"(missing {missing[:5]}, repeated {repeated[:5]}, in order: {steps == sorted(steps)})"
