"""kill -9 of anything, and workers that are drained or stopped: the job goes on, runs once, and
nothing that was told is lost."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

import tunesmith
from tunesmith_schema import EventKind

from .service import (
    ENDLESS,
    QUICK,
    SHORT,
    Service,
    alive,
    command_line,
    descendants,
    free_port,
    has_run,
    until,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sturdy(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Service]:
    """One service that takes most of the blows, one after the other, with leases of 4 s. A busy
    machine may end a lease without a kill, so a job may lose more workers than usual."""
    env = QUICK | {"TUNESMITH_MAX_LOSSES": "9"}
    running = Service(tmp_path_factory.mktemp("sturdy") / "data", model_dir, **env)
    running.start()
    yield running
    running.close()


def start_training(service: Service, rows: Path, **recipe: object) -> tunesmith.Job:
    """A job that has done its first steps, and trains until it is stopped."""
    with service.client() as client:
        job = client.fine_tuning.jobs.create(
            model="tiny", training_file=str(rows), recipe=ENDLESS | recipe
        )
    fresh = service.client().fine_tuning.jobs.retrieve(job.id)
    until(lambda: fresh.refresh().step >= 3)
    return fresh


def assert_complete(job: tunesmith.Job, steps: int) -> None:
    """Every step is there, events have no gap, and each attempt tells each step after the one it
    goes on from, once."""
    assert [point.step for point in job.metrics()] == list(range(1, steps + 1))
    events = list(job.stream())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    claims = [i for i, e in enumerate(events) if e.kind == "state" and e.data["state"] == "running"]
    for attempt, (claim, end) in enumerate(pairwise([*claims, len(events)]), 1):
        one = events[claim:end]
        resumed = [int(str(e.data["step"])) for e in one if e.kind == EventKind.RESUMED]
        assert len(resumed) == (attempt > 1)
        told = [e.data["step"] for e in one if e.kind == EventKind.METRICS]
        assert told == list(range(sum(resumed) + 1, sum(resumed) + len(told) + 1))
    assert told[-1] == steps


def test_a_worker_killed_in_mid_job_loses_the_job_and_it_finishes(
    sturdy: Service, rows: Path
) -> None:
    job = start_training(sturdy, rows)
    trainer, child = sturdy.trainers()[0], sturdy.worker_child()
    os.kill(sturdy.worker_main(), signal.SIGKILL)
    until(lambda: not alive(trainer) and not alive(child), 5)
    goes_on(job, 2)
    job.stop().wait(timeout=60)
    assert job.attempt == 2
    assert_complete(job, job.step)
    messages = [event.message for event in job.stream()]
    assert any("attempt 1 failed: queued again" in message for message in messages)
    (lost,) = job.report().earlier_attempts
    assert (lost.attempt, lost.outcome) == (1, None)


def test_an_api_killed_in_mid_job_loses_no_metric(sturdy: Service, rows: Path) -> None:
    job = start_training(sturdy, rows)

    def stop_later() -> None:
        until(sturdy.ready)
        seen = sturdy.client().fine_tuning.jobs.retrieve(job.id)
        goes_on(seen, 1)
        seen.stop()

    os.kill(sturdy.processes("tunesmith_server api")[0], signal.SIGKILL)
    with ThreadPoolExecutor(1) as thread:
        stopping = thread.submit(stop_later)
        job.wait(timeout=120)  # it also waits while the API is away
        stopping.result()
    assert job.attempt == 1
    assert_complete(job, job.step)


@contextmanager
def further_worker(env: dict[str, str], data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another worker, as on another host if its data directory is another one."""
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


def test_two_workers_and_one_job_make_one_trainer(sturdy: Service, rows: Path) -> None:
    env = sturdy.worker_env() | {"TUNESMITH_WARM_TRAINER": "false"}
    with further_worker(env, sturdy.data_dir) as second:
        ready = sturdy.url.removesuffix("/v1") + "/readyz"
        with sturdy.internal() as http:
            until(lambda: http.get(ready).json().get("workers", {}).get("train") == 2, 30)
        job = start_training(sturdy, rows)
        seen = {pid for _ in range(20) for pid in _sample(sturdy, second.pid)}
        job.stop().wait(timeout=60)
        second.terminate()
        second.wait(timeout=30)
    assert len(seen) == 1
    assert job.attempt == 1
    assert_complete(job, job.step)


def _sample(service: Service, second: int) -> list[int]:
    time.sleep(0.05)
    pids = descendants(service.pid) + descendants(second)
    return [
        pid for pid in pids if "tunesmith_worker.trainer " in command_line(pid) and has_run(pid)
    ]


def test_a_message_lost_with_the_broker_costs_seconds_only(sturdy: Service, rows: Path) -> None:
    with sturdy.client() as client:
        file = client.files.create(file=rows)
        client.files.wait_for_processing(file.id, timeout=30)
        for pid in sturdy.processes("valkey-server") + sturdy.processes("redis-server"):
            os.kill(pid, signal.SIGKILL)
        job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, recipe=SHORT)
        job.wait(timeout=90)
    assert job.attempt == 1


@pytest.fixture(scope="module")
def endless(sturdy: Service, rows: Path) -> tunesmith.Job:
    """A job that takes the blows of the tests below, one after the other. The last one ends it."""
    return start_training(sturdy, rows)


def goes_on(job: tunesmith.Job, attempt: int) -> None:
    """Wait until an attempt has done some steps beyond those that were told when it began."""
    until(lambda: job.refresh().attempt == attempt, 90)
    told = job.step  # the steps of a killed trainer are told before the next attempt begins
    until(lambda: job.refresh().step >= told + 3, 90)
    assert job.attempt == attempt


def test_a_supervisor_killed_in_mid_job_takes_its_trainer_along(
    sturdy: Service, endless: tunesmith.Job
) -> None:
    trainer, attempt = sturdy.trainers()[0], endless.refresh().attempt
    os.kill(sturdy.worker_child(), signal.SIGKILL)
    until(lambda: not alive(trainer), 5)
    # Told by its parent: no lease has lapsed.
    until(lambda: endless.refresh().status == "queued", 3.5)
    goes_on(endless, attempt + 1)


def test_a_job_whose_trainer_was_killed_goes_on(sturdy: Service, endless: tunesmith.Job) -> None:
    attempt = endless.refresh().attempt
    os.kill(sturdy.trainers()[0], signal.SIGKILL)
    goes_on(endless, attempt + 1)


def test_a_server_away_for_longer_than_the_lease_pauses_the_trainer_and_keeps_it(
    sturdy: Service, endless: tunesmith.Job
) -> None:
    attempt = endless.refresh().attempt
    api = sturdy.processes("tunesmith_server api")[0]
    trainer = sturdy.trainers()[0]
    os.kill(api, signal.SIGSTOP)
    try:
        stopped = until(lambda: _state(trainer) == "T", 40)
    finally:
        os.kill(api, signal.SIGKILL)  # a new one starts, whose janitor lets one lease pass first
    assert stopped
    until(lambda: _state(trainer) != "T", 60)
    goes_on(endless, attempt)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def trainers_of(pid: int) -> list[int]:
    found = [
        child for child in descendants(pid) if "tunesmith_worker.trainer " in command_line(child)
    ]
    return [child for child in found if has_run(child)]


def charged(service: Service, job: tunesmith.Job) -> tuple[int, str]:
    """Return the losses and failures of a job."""
    with closing(sqlite3.connect(service.data_dir / "tunesmith.db")) as database:
        query = "SELECT losses, failures FROM jobs WHERE id = ?"
        losses, failures = database.execute(query, [job.id]).fetchone()
        return losses, failures


def test_a_job_moves_from_a_drained_worker_to_one_that_is_stopped_and_to_a_third(
    sturdy: Service, endless: tunesmith.Job, tmp_path: Path
) -> None:
    env = sturdy.worker_env() | {
        "TUNESMITH_WORKER_TOKEN": (sturdy.data_dir / "worker-token").read_text().strip()
    }
    attempt, before = endless.refresh().attempt, charged(sturdy, endless)
    (trainer,) = sturdy.trainers()

    drained = subprocess.run(
        [sys.executable, "-m", "tunesmith_worker", "worker", "drain", "--wait"],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "drained: holds no job and can be stopped" in drained.stdout
    assert not alive(trainer)
    assert sturdy.processes("tunesmith_worker.trainer ") == [], "nor a warm one"
    assert endless.refresh().status == "queued"
    assert alive(sturdy.worker_main()), "a restart policy finds no ended process"
    ready = sturdy.url.removesuffix("/v1") + "/readyz"
    with sturdy.internal() as http:
        until(lambda: http.get(ready).status_code == 503, 30)
        said = http.get(ready).json()["error"]["message"]
    assert said.endswith("draining")

    with further_worker(env, tmp_path / "second") as second:
        goes_on(endless, attempt + 1)
        (trainer,) = trainers_of(second.pid)
        second.send_signal(signal.SIGTERM)
        assert second.wait(timeout=40) == 0
        assert not alive(trainer)
        assert endless.refresh().status == "queued"
    assert list((tmp_path / "second" / "claims").iterdir()) == []
    assert list((tmp_path / "second" / "workers").iterdir()) == []

    with further_worker(env, tmp_path / "third") as third:
        goes_on(endless, attempt + 2)
        (trainer,) = trainers_of(third.pid)
        os.kill(trainer, signal.SIGSTOP)  # its step never ends
        began = time.monotonic()
        while third.poll() is None and time.monotonic() < began + 25:
            third.send_signal(signal.SIGTERM)  # two that come at once are one to the kernel
            time.sleep(1.0)
        # One that comes while the interpreter ends meets no handler any more.
        assert third.poll() in (0, -signal.SIGTERM), "at once, not after a trainer's 30 s"
        assert not alive(trainer)
    until(lambda: endless.refresh().status == "queued", 5)
    assert charged(sturdy, endless) == before
    os.kill(sturdy.worker_main(), signal.SIGTERM)  # serve starts another, which is not drained
    goes_on(endless, attempt + 3)
    assert charged(sturdy, endless) == before


def test_ctrl_c_releases_the_job_and_an_empty_disk_takes_it_up_from_storage(
    sturdy: Service, endless: tunesmith.Job
) -> None:
    """The last one that needs this job and this service."""
    attempt, done = endless.refresh().attempt, endless.step
    before = [sturdy.pid, *sturdy.processes("")]
    assert sturdy.stop() < 20
    assert [pid for pid in before if alive(pid)] == []
    shutil.rmtree(sturdy.data_dir / "runs")  # as on another host
    sturdy.start()
    again = sturdy.client().fine_tuning.jobs.retrieve(endless.id)
    goes_on(again, attempt + 1)
    again.stop().wait(timeout=90)
    assert again.attempt == attempt + 1
    messages = [event.message for event in again.stream()]
    assert "released by its worker: queued again" in messages
    resumed = [event.data["step"] for event in again.stream() if event.kind == "resumed"]
    assert isinstance(resumed[-1], int)
    assert resumed[-1] >= done, "as many steps as had been done"
    assert_complete(again, again.step)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Service]:
    """A service without a broker that gives each job one attempt."""
    unreachable = f"redis://127.0.0.1:{free_port()}/0"
    env = {"TUNESMITH_MAX_LOSSES": "1", "TUNESMITH_BROKER_URL": unreachable}
    env |= QUICK | {"TUNESMITH_WARM_TRAINER": "false"}
    running = Service(tmp_path_factory.mktemp("strict") / "data", model_dir, **env)
    running.start()
    yield running
    running.close()


def test_a_job_that_kills_every_worker_fails_instead_of_going_round(
    strict: Service, rows: Path
) -> None:
    job = start_training(strict, rows)
    os.kill(strict.worker_main(), signal.SIGKILL)
    with pytest.raises(tunesmith.JobFailedError) as caught:
        job.wait(timeout=60)
    assert caught.value.code == "worker_lost"


def test_a_killed_trainer_ends_the_attempt_and_says_how(strict: Service, rows: Path) -> None:
    job = start_training(strict, rows)
    os.kill(strict.trainers()[0], signal.SIGKILL)
    with pytest.raises(tunesmith.JobFailedError) as caught:
        job.wait(timeout=20)
    assert caught.value.code == "trainer_killed"
    assert "SIGKILL" in str(caught.value)
    report = job.report()
    assert (report.outcome, report.live) == ("failed", False)
    assert report.phases["import"] > 0
    assert report.phases["forward"] > 0, "from the trainer's first step, which it wrote down"
    assert sum(report.phases.values()) == pytest.approx(report.wall_seconds, abs=0.01)


def test_without_a_broker_files_are_read_and_jobs_trained(strict: Service, rows: Path) -> None:
    with strict.client() as client:
        job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=SHORT)
        job.wait(timeout=120)
    assert job.attempt == 1


def test_kill_9_of_serve_leaves_no_process(strict: Service, rows: Path) -> None:
    """The last one that needs this service."""
    start_training(strict, rows)
    everything = [strict.pid, *strict.processes("")]
    os.kill(strict.pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in everything), 20)
