"""Pausing, resuming, cancelling and stopping real trainers: how soon, and what stays behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import tunesmith

from . import traces
from .service import LONG, Service, alive, until

pytestmark = pytest.mark.slow

ENDLESS = LONG | {"max_steps": 100_000}
LIMIT_SECONDS = 5.0


def obeyed(service: Service, job: tunesmith.Job, verb: str, state: str) -> float:
    """Ask something of a training job; seconds until its trainer is gone and its state is so."""
    [trainer] = service.trainers()
    asked = time.monotonic()
    getattr(job, verb)()
    until(lambda: not alive(trainer), 20)
    until(lambda: job.refresh().state == state, 20)
    return time.monotonic() - asked


def test_pause_and_cancel_are_obeyed_in_five_seconds_and_leave_nothing_behind(
    service: Service, client: tunesmith.Client, rows: Path
) -> None:
    temporary = Path(service.worker_env()["TMPDIR"])
    until(service.warm_trainers)
    before = traces.shared_memory(), set(temporary.iterdir())
    job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=ENDLESS)

    def train_and_ask(attempt: int, verb: str, state: str) -> None:
        before_it = job.step
        until(lambda: job.refresh().attempt == attempt and job.step >= before_it + 3)
        run = service.data_dir / "runs" / job.id / f"attempt-{attempt}"
        assert set(service.trainers()) <= traces.processes(run), "or nothing would be found below"
        assert obeyed(service, job, verb, state) < LIMIT_SECONDS
        until(service.warm_trainers, 30)  # it has let go of the last trainer's log and socket
        assert service.trainers() == []
        assert traces.processes(run) == set()
        assert traces.locks(run, temporary) == set()
        assert (traces.shared_memory() - before[0], set(temporary.iterdir())) == (set(), before[1])
        assert traces.unfinished(run, service.data_dir / "cache") == set()
        assert {path.name for path in run.iterdir()} <= traces.KEPT

    train_and_ask(1, "pause", "paused")
    time.sleep(1.0)
    assert (job.refresh().state, job.attempt) == ("paused", 1)
    job.resume()
    train_and_ask(2, "cancel", "cancelled")
    assert job.adapter_id is None
    told = [event.data["state"] for event in job.stream() if event.kind == "state"]
    assert told == ["queued", "running", "pausing", "paused", "queued", "running", "cancelled"]


def test_a_job_paused_while_its_trainer_loads_is_paused_at_once(
    client: tunesmith.Client, rows: Path, service: Service
) -> None:
    job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=ENDLESS)
    until(service.trainers)
    asked = time.monotonic()
    job.pause()
    until(lambda: job.refresh().state == "paused", 20)
    assert time.monotonic() - asked < LIMIT_SECONDS
    assert not any(alive(pid) for pid in service.trainers())
    job.cancel()
    assert job.state == "cancelled"
