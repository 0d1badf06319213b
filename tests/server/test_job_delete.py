"""Deletion of a job and of everything that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from tunesmith_schema import TERMINAL, JobFork, JobState
from tunesmith_server.models import JobRow
from tunesmith_server.services.training import job_create, job_delete, job_fork

from .actors import Server
from .callers import event, metrics
from .test_run_reports import run_report

PATH = "/v1/fine_tuning/jobs"


def test_a_job_goes_with_all_that_belongs_to_it(server: Server) -> None:
    file_id = server.good_file()
    job_id = server.create_job(file_id, headers={"idempotency-key": "k"})
    claim = server.worker.claim()
    files = server.worker.store(claim, {"a.txt": b"checkpoint"})
    point = server.worker.store(claim, {"manifest.json": b"{}"})
    samples = server.worker.store(claim, {"samples.gz": b"samples"})
    events = [
        metrics(1, 1, loss=2.0),
        event(2, kind="checkpoint", data={"step": 1, "metrics": {}}, files=files),
        event(3, kind="resume_point", data={"step": 1}, files=point),
        event(4, kind="samples", data={"step": 1, "count": 1}, files=samples),
    ]
    server.worker.report(claim, events=events, run_report=run_report(1))
    server.worker.succeed(claim)
    adapter_id = server.job(job_id)["adapter_id"]
    reply = server.user.delete(f"{PATH}/{job_id}")
    assert reply.json() == {"id": job_id, "object": "fine_tuning.job", "deleted": True}
    assert server.user.get(f"{PATH}/{job_id}").status_code == 404
    assert server.user.get(f"/v1/adapters/{adapter_id}").status_code == 404
    assert server.user.json("/v1/models")["data"][1:] == []
    with server.database.read() as session:
        for table in (*job_delete._TABLES, JobRow):
            assert session.scalar(select(func.count()).select_from(table)) == 0, table
    assert server.user.get(f"/v1/files/{file_id}").status_code == 200
    server.janitor().sweep(older_than=timedelta(seconds=-5))
    assert server.storage.size(files[0]["sha256"]) is None
    assert server.user.delete(f"{PATH}/{job_id}").status_code == 404


@pytest.mark.parametrize("state", list(JobState))
def test_only_an_ended_job_is_deleted(
    server: Server, job_in: Callable[[JobState], str], state: JobState
) -> None:
    job_id = job_in(state)
    reply = server.user.delete(f"{PATH}/{job_id}")
    if state in TERMINAL:
        assert reply.status_code == 200
    else:
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "not_deletable")
        assert f"{job_id}/cancel" in error["hint"]


def test_a_job_that_a_fork_starts_from_stays(
    server: Server, job_in: Callable[[JobState], str]
) -> None:
    parent = job_in(JobState.CANCELLED)
    server.add_resume_points(parent, 10)
    fork = server.ask(parent, "fork")["id"]
    error = server.user.delete(f"{PATH}/{parent}").json()["error"]
    assert error["code"] == "job_in_use"
    assert fork in error["message"]
    server.ask(fork, "cancel")
    assert server.user.delete(f"{PATH}/{parent}").status_code == 200
    assert server.job(fork)["forked_from"] == parent


def test_a_job_whose_weights_another_job_starts_from_stays(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id, recipe={"tuning": "full"})
    claim = server.worker.claim()
    server.worker.succeed(claim, "full")
    name = server.job(claim["job_id"])["fine_tuned_model"]
    server.create_job(file_id, model=name)
    error = server.user.delete(f"{PATH}/{claim['job_id']}").json()["error"]
    assert error["code"] == "job_in_use"


def test_a_job_is_not_deleted_under_a_fork_that_is_being_made(
    server: Server, job_in: Callable[[JobState], str]
) -> None:
    parent = job_in(JobState.CANCELLED)
    server.add_resume_points(parent, 10)
    with ThreadPoolExecutor(1) as pool:
        with server.user_session() as session, session.begin():
            by = job_create.Requester(owner="key-1")
            job_fork.fork(session, server.settings, server.wake_ups, parent, JobFork(), by)
            deleting = pool.submit(server.user.delete, f"{PATH}/{parent}")
        assert deleting.result(timeout=20).status_code == 409


def test_a_deleted_jobs_key_makes_a_new_job(server: Server) -> None:
    file_id, key = server.good_file(), {"idempotency-key": "k"}
    first = server.create_job(file_id, headers=key)
    server.ask(first, "cancel")
    server.user.delete(f"{PATH}/{first}")
    assert server.create_job(file_id, headers=key) != first


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_resume_points_of_jobs_without_a_result_expire(
    server: Server, job_in: Callable[[JobState], str], state: JobState
) -> None:
    job_id = job_in(state)
    server.add_resume_points(job_id, 10)
    server.janitor().round()
    assert server.user.post(f"{PATH}/{job_id}/fork").status_code == 200
    for job in server.user.json(PATH)["data"]:
        if job["id"] != job_id:
            server.ask(job["id"], "cancel")
    days = server.settings.resume_point_days
    server.change_job(job_id, finished_at=JobRow.finished_at - days * 86_400 - 60)
    server.janitor().round()
    assert server.user.post(f"{PATH}/{job_id}/fork").json()["error"]["code"] == "not_forkable"
    assert server.ask(job_id, "retry")["forked_from"] is None
