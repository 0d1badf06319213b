"""Limits of queued jobs, running jobs and device-hours hold exactly, also for requests at once."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update

from tunesmith_server.models import ApiKeyRow, EvaluationRow, JobRow, ProjectRow, UsageRow

from .actors import Server

CREATES = 64


def set_limits(server: Server, table: Any, **columns: Any) -> None:  # Any: a table, column values
    with server.database.write.begin() as session:
        session.execute(update(table).values(**columns))


def test_64_creates_at_once_do_not_exceed_the_limit(server: Server) -> None:
    file_id = server.good_file()
    server.worker.hello()
    set_limits(server, ProjectRow, max_queued_jobs=10)
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: server.create_reply(file_id), range(CREATES)))
    assert Counter(reply.status_code for reply in replies) == {200: 10, 429: CREATES - 10}
    error = next(reply for reply in replies if reply.status_code == 429).json()["error"]
    assert (error["code"], error["message"]) == (
        "quota_exceeded", "the project has 10 waiting jobs and evaluations, and its limit is 10",
    )  # fmt: skip
    server.worker.claim()
    assert server.create_reply(file_id).status_code == 200
    set_limits(server, ProjectRow, max_queued_jobs=None)
    set_limits(server, ApiKeyRow, max_queued_jobs=3)
    assert "this key has 10 waiting jobs" in server.create_reply(file_id).text


def test_evaluations_and_jobs_created_at_once_share_the_limit(server: Server) -> None:
    file_id = server.good_file()
    server.worker.hello()
    set_limits(server, ProjectRow, max_queued_jobs=10)
    evaluation = {"model": "tiny-llama", "file": file_id}

    def create(number: int) -> int:
        if number % 2:
            return server.create_reply(file_id).status_code
        return server.user.post("/v1/evaluations", json=evaluation).status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = Counter(pool.map(create, range(CREATES)))
    assert statuses == {200: 10, 429: CREATES - 10}
    with server.database.read() as session:
        stored = [
            session.scalar(select(func.count()).select_from(t)) for t in (JobRow, EvaluationRow)
        ]
    assert sum(count or 0 for count in stored) == 10


def test_evaluations_at_once_do_not_exceed_the_limit_of_a_key(server: Server) -> None:
    body = {"model": "tiny-llama", "file": server.good_file()}
    server.worker.hello()
    set_limits(server, ApiKeyRow, max_queued_jobs=5)
    with ThreadPoolExecutor(16) as pool:
        replies = list(
            pool.map(lambda _: server.user.post("/v1/evaluations", json=body), range(32))
        )
    assert Counter(reply.status_code for reply in replies) == {200: 5, 429: 27}


def test_claims_at_once_do_not_exceed_the_limit(server: Server) -> None:
    file_id = server.good_file()
    for _ in range(8):
        server.create_job(file_id)
    set_limits(server, ProjectRow, max_running_jobs=3)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: server.worker.claim_reply(f"worker-{n}"), range(8)))
    assert Counter(reply.status_code for reply in replies) == {200: 3, 204: 5}


@pytest.mark.parametrize("table", [ProjectRow, ApiKeyRow])
def test_device_hours_are_those_of_30_days_without_lost_work(server: Server, table: Any) -> None:
    job_id, today = server.create_job(server.good_file()), int(time.time() // 86_400)
    set_limits(server, table, max_device_hours=2.0)
    with server.database.write.begin() as session:
        job = session.get_one(JobRow, job_id)
        of_job = {"project_id": job.project_id, "owner": job.owner, "model": job.model}
        session.add_all(
            UsageRow(day=today - age, device_seconds=9000.0, lost_seconds=1800.0, **of_job)
            for age in (28, 30)
        )
    assert server.worker.claim_reply().status_code == 204, "2 hours are used"
    set_limits(server, UsageRow, lost_seconds=1801.0)
    assert server.worker.claim()["job_id"] == job_id


def test_an_idempotent_repeat_is_answered_at_the_limit(server: Server) -> None:
    file_id = server.good_file()
    server.worker.hello()
    set_limits(server, ProjectRow, max_queued_jobs=1)
    headers = {"idempotency-key": "k"}
    first = server.create_reply(file_id, headers=headers)
    again = server.create_reply(file_id, headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["id"] == again.json()["id"]
