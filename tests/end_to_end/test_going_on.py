"""Paused, cancelled and taken up, branched, ended early: what comes of a real run in each case."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import tunesmith
from tunesmith_schema import EventKind

from .conftest import MakeService
from .service import LONG, Service, until

pytestmark = pytest.mark.slow

# A pause must come before the end; a layout chosen by measuring need not be the same in two runs.
RECIPE = LONG | {"max_steps": 300, "learning_rate": 1e-3, "packing": False}


# Cannot end before it is pre-empted. After a stop, it equals a run with that number of steps.
ENDLESS: dict[str, Any] = {"max_steps": 100_000, "lr_scheduler_type": "constant", "warmup_steps": 0}


class Runs:
    """Jobs on one file with one seed: what differs between two of them was asked of them."""

    def __init__(self, client: tunesmith.Client, rows: Path, folder: Path) -> None:
        self.jobs = client.fine_tuning.jobs
        self._adapters, self._folder = client.adapters, folder
        self._file = client.files.create(file=rows).id

    def start(self, *, scheduling: dict[str, Any] | None = None, **recipe: Any) -> tunesmith.Job:
        return self.jobs.create(
            model="tiny", training_file=self._file, seed=5, recipe=RECIPE | recipe,
            scheduling=scheduling,
        )  # fmt: skip

    def trained(self, **recipe: Any) -> tunesmith.Job:
        """One that has done a few steps."""
        job = self.start(**recipe)
        until(lambda: job.refresh().step >= 5)
        return job

    def result(self, job: tunesmith.Job) -> str:
        """sha256 of the weights it ended with."""
        folder = self._adapters.download(job.id, self._folder / job.id)
        return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()

    def resumed_at(self, job: tunesmith.Job) -> list[int]:
        return [event.data["step"] for event in job.stream() if event.kind == EventKind.RESUMED]  # type: ignore[misc]  # steps are integers


@pytest.fixture
def runs(client: tunesmith.Client, rows: Path, tmp_path: Path) -> Runs:
    return Runs(client, rows, tmp_path)


def pause(job: tunesmith.Job) -> None:
    job.pause()
    until(lambda: job.refresh().state == "paused", 20)


def test_a_run_paused_resumed_cancelled_and_retried_ends_as_one_that_was_left_alone(
    runs: Runs, service: Service
) -> None:
    held = runs.trained()
    pause(held)
    first = held.step
    assert service.trainers() == []
    held.resume()
    until(lambda: held.refresh().step > first)
    pause(held)
    held.cancel()
    retried = runs.jobs.retry(held.id)
    fork = runs.jobs.fork(held.id, recipe={"learning_rate": 1e-5})
    whole = runs.start()
    for job in (retried, fork, whole):
        job.wait(timeout=120)
    assert runs.resumed_at(held) == [first]
    for job in (retried, fork):
        step = job.forked_step
        assert step == held.step > first
        assert runs.resumed_at(job) == [step]
        steps = [point.step for point in job.metrics()]
        assert steps == list(range(step + 1, RECIPE["max_steps"] + 1))
    assert runs.result(retried) == runs.result(whole)
    assert runs.result(fork) != runs.result(whole)


def test_a_preempted_run_ends_as_one_that_was_left_alone(
    make_service: MakeService, rows: Path, tmp_path: Path
) -> None:
    service = make_service(TUNESMITH_LEASE_SECONDS="180")  # soon after the start of the API
    runs = Runs(service.client(), rows, tmp_path)
    long = runs.trained(**ENDLESS)
    short = runs.start(max_steps=3, scheduling={"interactive": True})
    short.wait(timeout=180)
    before = long.refresh().step
    until(lambda: long.refresh().attempt == 2 and long.step > before + 5, 180)
    long.stop().wait(timeout=180)
    assert any(f"pre-empted by the interactive job {short.id}" in e.message for e in long.stream())
    [resumed] = runs.resumed_at(long)
    assert 5 <= resumed < long.step
    assert [point.step for point in long.metrics()] == list(range(1, long.step + 1))
    whole = runs.start(**ENDLESS | {"max_steps": long.step})
    whole.wait(timeout=180)
    assert whole.attempt == 1
    assert runs.resumed_at(whole) == []
    assert runs.result(long) == runs.result(whole)


def test_a_stopped_job_succeeds_with_what_it_has_made(runs: Runs) -> None:
    running = runs.trained(max_steps=100_000)
    running.stop().wait(timeout=60)
    last = max(point.step for point in running.metrics())
    assert 5 <= last < 100_000
    assert running.stop_requested
    assert runs.result(running)

    paused = runs.trained(max_steps=100_000)
    pause(paused)
    paused.stop().wait(timeout=60)
    [step] = runs.resumed_at(paused)
    assert paused.step == step + 1
    assert runs.result(paused)
