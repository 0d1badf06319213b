"""Each waiting job says why it waits, at which place, and when it is expected to start."""

from __future__ import annotations

import time
from typing import Any

import pytest
from httpx2 import Response
from sqlalchemy import update

from tunesmith_server.models import JobRow, ProjectRow, WorkerRow

from .actors import Server
from .callers import event, metrics

GIB = 2**30


def why(server: Server, job_id: str) -> tuple[str, str]:
    because = server.job(job_id)["waiting_because"]
    return because["code"], because["message"]


def claim_again(server: Server) -> Response:
    """Ask for a job without another heartbeat, which would change the worker."""
    return server.worker.post("/internal/jobs/claim", json={"worker_id": "worker-1"})


def change_project(server: Server, **columns: Any) -> None:  # Any: column values
    with server.database.write.begin() as session:
        session.execute(update(ProjectRow).values(**columns))


def test_a_job_says_what_it_waits_for(server: Server) -> None:
    file_id = server.good_file()
    first, second = server.create_job(file_id), server.create_job(file_id)
    assert why(server, first) == ("starting", "a free training worker will claim it")
    assert why(server, second) == ("behind", "1 job is ahead")
    assert [server.job(one)["queue_position"] for one in (first, second)] == [1, 2]
    claim = server.worker.claim()
    assert server.job(first)["waiting_because"] is None
    assert why(server, second) == (
        "devices_busy", "the only device that fits is busy (running jobs of default: 1)",
    )  # fmt: skip
    assert server.job(second)["queue_position"] == 1
    assert server.ask(second, "pause")["state"] == "paused"
    assert why(server, second) == ("paused", "it is paused until it is resumed")
    assert server.job(second)["queue_position"] is None
    failure = {"category": "infrastructure", "code": "trainer_crashed", "message": "m"}
    server.worker.report(claim, outcome={"state": "failed", "error": failure})
    code, message = why(server, first)
    assert (code, "the next attempt starts in" in message) == ("backing_off", True)
    server.worker.report_reply(claim, events=[event(1)])
    unread = server.create_job(server.upload())
    assert why(server, unread) == ("validating_files", "no worker that validates files is running")


def test_a_list_leaves_the_reason_out(server: Server) -> None:
    server.create_job(server.good_file())
    [job] = server.user.json("/v1/fine_tuning/jobs")["data"]
    names = ("waiting_because", "queue_position", "estimated_start")
    assert [job[name] for name in names] == [None, None, None]


@pytest.mark.parametrize(
    ("scheduling", "expected"),
    [
        (
            {"worker_labels": {"gpu": "h100"}},
            ("no_labels", "no training worker has the labels gpu=h100"),
        ),
        (
            {"device_bytes": 38 * GIB},
            ("no_memory", "the job needs 38.0 GiB, and the largest device has 24.0 GiB"),
        ),
    ],
)
def test_a_job_that_no_device_fits_says_what_is_missing(
    server: Server, scheduling: dict[str, Any], expected: tuple[str, str]
) -> None:
    job_id = server.create_job(server.good_file(), scheduling=scheduling)
    server.worker.hello(device_bytes=24 * GIB, labels={"gpu": "a10"})
    assert why(server, job_id) == expected
    assert claim_again(server).status_code == 204
    server.worker.hello(device_bytes=80 * GIB, labels={"gpu": "h100", "rack": "2"})
    assert why(server, job_id)[0] == "starting"
    assert claim_again(server).json()["job_id"] == job_id


def test_a_job_without_its_model_or_without_a_worker_says_so(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.hello(models=["other"])
    assert why(server, job_id) == ("no_model", "no training worker has the base model 'tiny-llama'")
    server.worker.hello(not_ready="the disk is full")
    assert why(server, job_id) == ("no_worker", "worker-1: the disk is full")
    with server.database.write.begin() as session:
        session.execute(update(WorkerRow).values(last_seen=0.0))
    assert why(server, job_id) == ("no_worker", "no training worker is running")
    assert server.job(job_id)["queue_position"] is None


def test_a_job_over_a_limit_names_it(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    second = server.create_job(file_id)
    server.worker.claim()
    server.worker.hello("worker-2")
    change_project(server, max_running_jobs=1)
    assert why(server, second) == (
        "project_limit", "the project runs 1 of at most 1 jobs",
    )  # fmt: skip
    change_project(server, max_running_jobs=None, max_device_hours=0.0)
    assert why(server, second)[0] == "project_limit"
    assert server.worker.claim_reply("worker-2").status_code == 204
    change_project(server, max_device_hours=None)
    assert server.worker.claim("worker-2")["job_id"] == second


def test_the_expected_start_follows_the_progress_of_the_running_job(server: Server) -> None:
    file_id = server.good_file()
    running, waiting = server.create_job(file_id), server.create_job(file_id)
    claim = server.worker.claim()
    server.worker.report(claim, events=[metrics(1, 1, train_loss=1.0, total_steps=100)])
    server.worker.report(claim, events=[metrics(2, 25, train_loss=1.0)])
    server.change_job(running, measured_at=JobRow.measured_at - 96.0)
    start = server.job(waiting)["estimated_start"]
    assert start["at"] - time.time() == pytest.approx(300, abs=15)  # 75 steps of 4 s
    assert start["earliest"] <= start["at"] <= start["latest"]
