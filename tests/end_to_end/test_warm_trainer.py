"""The warm trainer of a running service: what ends its worker ends it, and jobs start in it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import tunesmith

from .conftest import MakeService
from .service import SHORT, Service, alive, until

pytestmark = pytest.mark.slow


def warm_of(service: Service) -> int:
    return until(service.warm_trainers)[0]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def new_warm_trainer(service: Service, *old: int) -> int:
    return until(lambda: [pid for pid in service.warm_trainers() if pid not in old], 30)[0]


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


def test_a_worker_that_ends_in_any_way_leaves_no_warm_trainer_and_the_next_has_one(
    make_service: MakeService,
) -> None:
    service = make_service()
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
