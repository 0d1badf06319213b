"""A worker that is told to go lets its job go, and another goes on: nothing is charged."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import tunesmith

from .conftest import MakeService
from .service import LONG, Service, alive, command_line, descendants, has_run, until

pytestmark = pytest.mark.slow


@contextmanager
def further_worker(env: dict[str, str], data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of its own, as on another host."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "tunesmith_worker", "worker", "--queue", "train"],
        env={**env, "TUNESMITH_DATA_DIR": str(data_dir)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait(timeout=30)


RECIPE = LONG | {"max_steps": 100_000}  # three workers must let go before the end


def trains(job: tunesmith.Job, attempt: int, after: int = 0) -> bool:
    """Whether it has done some steps beyond where it goes on from."""
    job.refresh()
    return job.attempt == attempt and job.step >= after + 3


def trainers_of(pid: int) -> list[int]:
    found = [
        child for child in descendants(pid) if "tunesmith_worker.trainer " in command_line(child)
    ]
    return [child for child in found if has_run(child)]


def charged(service: Service) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(service.data_dir / "tunesmith.db")) as database:
        return list(database.execute("SELECT losses, failures FROM jobs"))


def test_a_job_moves_from_a_drained_worker_to_one_that_is_stopped_and_to_a_third(
    make_service: MakeService, rows: Path, tmp_path: Path
) -> None:
    service = make_service()
    env = service.worker_env() | {
        "TUNESMITH_WORKER_TOKEN": (service.data_dir / "worker-token").read_text().strip()
    }
    client = service.client()
    job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=RECIPE)
    until(lambda: trains(job, 1))
    (trainer,) = service.trainers()

    drained = subprocess.run(
        [sys.executable, "-m", "tunesmith_worker", "worker", "drain", "--wait"],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "drained: holds no job and can be stopped" in drained.stdout
    assert not alive(trainer)
    assert service.processes("tunesmith_worker.trainer ") == [], "nor a warm one"
    assert job.refresh().status == "queued"
    step = job.step
    assert alive(service.worker_main()), "a restart policy finds no ended process"
    ready = service.url.removesuffix("/v1") + "/readyz"
    with service.internal() as http:
        until(lambda: http.get(ready).status_code == 503, 30)
        said = http.get(ready).json()["error"]["message"]
    assert said.endswith("draining")

    with further_worker(env, tmp_path / "second") as second:
        until(lambda: trains(job, 2, step))
        (trainer,) = trainers_of(second.pid)
        second.send_signal(signal.SIGTERM)
        assert second.wait(timeout=40) == 0
        assert not alive(trainer)
        assert job.refresh().status == "queued"
        step = job.step
    assert list((tmp_path / "second" / "claims").iterdir()) == []
    assert list((tmp_path / "second" / "workers").iterdir()) == []

    with further_worker(env, tmp_path / "third") as third:
        until(lambda: trains(job, 3, step))
        (trainer,) = trainers_of(third.pid)
        os.kill(trainer, signal.SIGSTOP)  # its step never ends
        began = time.monotonic()
        while third.poll() is None and time.monotonic() < began + 25:
            third.send_signal(signal.SIGTERM)  # two that come at once are one to the kernel
            time.sleep(1.0)
        # One that comes while the interpreter ends meets no handler any more.
        assert third.poll() in (0, -signal.SIGTERM), "at once, not after a trainer's 30 s"
        assert not alive(trainer)
    until(lambda: job.refresh().status == "queued", 5)
    assert charged(service) == [(0, "[]")]
    os.kill(service.worker_main(), signal.SIGTERM)  # serve starts another, which is not drained
    step = job.step
    until(lambda: trains(job, 4, step))
    job.stop().wait(timeout=60)
    assert (job.attempt, charged(service)) == (4, [(0, "[]")])
    assert [point.step for point in job.metrics()] == list(range(1, job.step + 1))
