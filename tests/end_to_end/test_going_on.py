"""Paused, cancelled and taken up, branched, ended early: what comes of a real run in each case."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tunesmith
from tunesmith_schema import EventKind

from .service import ENDLESS, QUICK, Service, until

pytestmark = pytest.mark.slow

# Cannot end before it is interrupted. After a stop, it equals a run with that number of steps.
# Without packing, because a layout chosen by measuring need not be the same in two runs.
RECIPE: dict[str, Any] = ENDLESS | {
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "packing": False,
}


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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Service]:
    """A service with leases of 180 s: pre-emption must work soon after the start of the API.
    test_control.py tests warm trainers; this service starts none, which saves their imports."""
    env = QUICK | {"TUNESMITH_LEASE_SECONDS": "180", "TUNESMITH_WARM_TRAINER": "false"}
    running = Service(tmp_path_factory.mktemp("going-on") / "data", model_dir, **env)
    running.start()
    yield running
    running.close()


@pytest.fixture
def runs(client: tunesmith.Client, rows: Path, tmp_path: Path) -> Runs:
    return Runs(client, rows, tmp_path)


def pause(job: tunesmith.Job) -> None:
    job.pause()
    until(lambda: job.refresh().state == "paused", 20)


def test_a_run_interrupted_in_every_way_ends_as_one_that_was_left_alone(
    runs: Runs, service: Service
) -> None:
    held = runs.trained()
    short = runs.start(max_steps=3, scheduling={"interactive": True})
    short.wait(timeout=180)
    before = held.refresh().step
    until(lambda: held.refresh().attempt == 2 and held.step > before, 180)
    assert any(f"pre-empted by the interactive job {short.id}" in e.message for e in held.stream())
    pause(held)
    first = held.step
    assert service.trainers() == []
    held.resume()
    until(lambda: held.refresh().step > first)
    pause(held)
    held.cancel()
    [preempted, resumed] = runs.resumed_at(held)
    assert 5 <= preempted < first
    assert (resumed, held.attempt) == (first, 3)
    assert [point.step for point in held.metrics()] == list(range(1, held.step + 1))

    retried = runs.jobs.retry(held.id)
    fork = runs.jobs.fork(held.id, recipe={"learning_rate": 1e-5})
    until(lambda: retried.refresh().step > held.step)
    retried.stop().wait(timeout=60)
    assert retried.stop_requested
    until(lambda: fork.refresh().step > held.step)
    pause(fork)
    paused_at = fork.step
    fork.stop().wait(timeout=60)
    assert fork.step == paused_at + 1, "a paused job trains one more step and saves its result"
    assert runs.resumed_at(retried) == [held.step]
    assert runs.resumed_at(fork) == [held.step, paused_at]
    for job in (retried, fork):
        assert job.forked_step == held.step > first
        steps = [point.step for point in job.metrics()]
        assert steps == list(range(held.step + 1, job.step + 1))
        assert job.step < RECIPE["max_steps"]
    assert {p.values["learning_rate"] for p in retried.metrics()} == {RECIPE["learning_rate"]}
    assert {p.values["learning_rate"] for p in fork.metrics()} == {1e-5}

    whole = runs.start(max_steps=retried.step)
    whole.wait(timeout=180)
    assert (whole.attempt, runs.resumed_at(whole)) == (1, [])
    assert runs.result(retried) == runs.result(whole)
    assert runs.result(fork)
