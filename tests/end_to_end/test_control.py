"""Pausing, resuming, cancelling and stopping real trainers, warm ones too: how soon, and what stays
behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tunesmith

from . import traces
from .service import ENDLESS, SHORT, Service, alive, until

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 5.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Service]:
    """A service with its own TMPDIR and leases of the usual length."""
    folder = tmp_path_factory.mktemp("control")
    (folder / "temporary").mkdir()
    running = Service(folder / "data", model_dir, TMPDIR=str(folder / "temporary"))
    running.start()
    yield running
    running.close()


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


def test_a_job_is_cancelled_while_its_trainer_still_imports(
    client: tunesmith.Client, rows: Path, service: Service
) -> None:
    job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=ENDLESS)
    until(lambda: service.trainers())
    asked = time.monotonic()
    job.cancel()
    until(lambda: job.refresh().status == "cancelled", 10)
    assert time.monotonic() - asked < 5


def test_a_queued_job_is_cancelled_at_once_and_never_starts(
    client: tunesmith.Client, rows: Path
) -> None:
    jobs = client.fine_tuning.jobs
    first = jobs.create(model="tiny", training_file=str(rows), recipe=ENDLESS)
    second = jobs.create(model="tiny", training_file=first.training_file, recipe=SHORT)
    until(lambda: first.refresh().state == "running")
    assert second.cancel().status == "cancelled"
    first.cancel()
    with pytest.raises(tunesmith.JobCancelledError):
        first.wait(timeout=20)
    assert second.refresh().attempt == 0


def warm_of(service: Service) -> int:
    return until(service.warm_trainers)[0]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def wait_until_ready(warm: int) -> None:
    """It has used time for its imports, and uses none any more."""
    deadline, used, since = time.monotonic() + 120, 0, time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = cpu_ticks(warm)
        if now != used:
            used, since = now, time.monotonic()
        elif used > 100 and time.monotonic() > since + 1.5:
            return
    raise AssertionError("the warm trainer never got ready")


def test_a_job_starts_in_the_warm_trainer_and_the_next_one_is_there_after_it(
    service: Service, client: tunesmith.Client, rows: Path
) -> None:
    """A ready warm's share of the start is a few hundredths of a second; trips on one second."""
    file = client.files.create(file=rows)
    client.files.wait_for_processing(file.id, timeout=30)
    warm = warm_of(service)
    wait_until_ready(warm)
    asked = time.monotonic()
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, recipe=SHORT)
    seconds: dict[str, float] = {}
    for event in job.stream():
        if event.kind == "phase":
            seconds[str(event.data["phase"])] = float(str(event.data["seconds"]))
        if event.kind == "metrics" and "first step" not in seconds:
            seconds["first step"] = time.monotonic() - asked
            trainers = service.trainers()
            assert trainers in ([warm], []), "none: the job is over by the time its step is seen"
            assert not trainers or not service.warm_trainers(), "no memory is held beside a trainer"
    assert seconds["spawn"] + seconds["import"] < 1.0, seconds
    assert seconds["first step"] < 6.0, seconds
    assert warm_of(service) != warm
    until(lambda: not alive(warm), 10)


def test_a_worker_that_ends_in_any_way_leaves_no_warm_trainer_and_the_next_has_one(
    service: Service,
) -> None:
    """Must run last, because it stops the service."""
    first = warm_of(service)
    assert service.trainers() == []
    os.kill(service.worker_child(), signal.SIGKILL)
    until(lambda: not alive(first), 5)
    second = until(lambda: [pid for pid in service.warm_trainers() if pid != first], 20)[0]
    os.kill(service.worker_main(), signal.SIGKILL)
    until(lambda: not alive(second), 5)
    third = until(
        lambda: [pid for pid in service.warm_trainers() if pid not in (first, second)], 30
    )[0]
    os.kill(service.worker_main(), signal.SIGTERM)
    until(lambda: not alive(third), 20)
    fourth = until(
        lambda: [pid for pid in service.warm_trainers() if pid not in (first, third)], 30
    )[0]
    service.stop()
    assert not alive(fourth)
