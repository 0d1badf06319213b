"""/v1/queue, /v1/workers and /v1/usage show who runs where, who waits, and who used how much."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import update

from tunesmith_server.models import ApiKeyRow, JobRow, ProjectRow, WorkerRow
from tunesmith_server.services import keys

from .actors import Server
from .callers import Caller


@pytest.fixture
def admin(server: Server) -> Caller:
    with server.database.write.begin() as session:
        key = keys.create(session, "root", role="admin")[1]
    return Caller(server.client, key)


@pytest.fixture
def stranger(server: Server) -> Caller:
    """Key of another project."""
    with server.database.write.begin() as session:
        session.add(ProjectRow(id="proj-2", name="two", created_at=0.0))
        row, key = keys.create(session, "stranger", role="lead")
        session.execute(update(ApiKeyRow).where(ApiKeyRow.id == row.id).values(project_id="proj-2"))
    return Caller(server.client, key)


def test_the_queue_shows_running_and_waiting_jobs(server: Server, stranger: Caller) -> None:
    file_id = server.good_file()
    first, second = server.create_job(file_id), server.create_job(file_id)
    server.worker.claim()
    queue = server.user.json("/v1/queue")
    [running], [waiting] = queue["running"], queue["waiting"]
    assert (running["id"], running["worker"], running["project"]) == (
        first, "worker-1", "default",
    )  # fmt: skip
    assert (waiting["id"], waiting["queue_position"]) == (second, 1)
    assert waiting["waiting_because"]["code"] == "devices_busy"
    assert (queue["num_waiting"], queue["devices"], queue["free_devices"]) == (1, 1, 0)
    seen = stranger.json("/v1/queue")
    hidden = [*seen["running"], *seen["waiting"]]
    assert [(job["id"], job["model"]) for job in hidden] == [(None, None), (None, None)]
    assert all(not job["waiting_because"] for job in hidden)
    assert first not in stranger.get("/v1/queue").text


def test_workers_show_device_job_and_reason(server: Server, stranger: Caller) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.hello("worker-2", not_ready="the GPU is used by others", device_bytes=5)
    server.worker.claim()
    one, two = server.user.json("/v1/workers")["data"]
    assert (one["state"], one["job_id"], one["project"]) == ("busy", job_id, "default")
    assert (two["state"], two["reason"], two["device_bytes"]) == (
        "not_ready", "the GPU is used by others", 5,
    )  # fmt: skip
    assert one["last_hello"] == pytest.approx(time.time(), abs=30)
    assert job_id not in stranger.get("/v1/workers").text
    with server.database.write.begin() as session:
        session.execute(update(WorkerRow).values(last_seen=WorkerRow.last_seen - 100))
    states = {worker["state"] for worker in server.user.json("/v1/workers")["data"]}
    assert states == {"gone"}


def usage(caller: Caller, **params: Any) -> Any:  # Any: JSON
    return caller.json("/v1/usage", params=params)


def test_usage_adds_ended_and_running_jobs_by_group(
    server: Server, admin: Caller, stranger: Caller
) -> None:
    file_id = server.good_file()
    ended = server.create_job(file_id)
    claim = server.worker.claim()
    server.change_job(ended, claimed_at=JobRow.claimed_at - 120)
    server.worker.succeed(claim)
    running = server.create_job(file_id)
    server.worker.claim()
    server.change_job(running, claimed_at=JobRow.claimed_at - 60)
    report = usage(server.user, group_by=["user", "model"])
    [item] = report["data"]
    assert (item["user"], item["model"], item["project"]) == ("ann", "tiny-llama", None)
    assert item["device_seconds"] == pytest.approx(180, abs=5)
    assert (item["lost_seconds"], report["lost_seconds"]) == (0.0, 0.0)
    by_day = usage(admin, group_by=["day", "project"], days=2)
    assert {one["project"] for one in by_day["data"]} == {"default"}
    assert sum(one["device_seconds"] for one in by_day["data"]) == pytest.approx(180, abs=5)
    assert usage(stranger)["data"] == []


def test_idle_devices_are_counted(server: Server) -> None:
    server.worker.hello()
    with server.database.write.begin() as session:
        session.execute(update(WorkerRow).values(last_seen=WorkerRow.last_seen - 20))
    server.worker.hello()
    assert usage(server.user)["idle_seconds"] == pytest.approx(20, abs=3)
    server.create_job(server.good_file())
    server.worker.claim()
    before = usage(server.user)["idle_seconds"]
    with server.database.write.begin() as session:
        session.execute(update(WorkerRow).values(last_seen=WorkerRow.last_seen - 20))
    server.worker.hello()
    assert usage(server.user)["idle_seconds"] == before


def test_an_admin_changes_shares_and_a_lead_limits_of_keys(
    server: Server, admin: Caller, stranger: Caller
) -> None:
    server.create_job(server.good_file())
    assert server.user.post("/v1/queue/projects/proj-2", json={}).status_code == 403
    body = {"weight": 2.5, "guaranteed_devices": 1, "max_running_jobs": 4}
    share = admin.post("/v1/queue/projects/proj-2", json=body).json()
    assert {name: share[name] for name in body} == body
    changed = admin.post("/v1/queue/projects/proj-2", json={"max_running_jobs": None}).json()
    assert (changed["max_running_jobs"], changed["weight"]) == (None, 2.5)
    assert admin.post("/v1/queue/projects/proj-9", json=body).status_code == 404
    names = [one["name"] for one in admin.json("/v1/queue/projects")["data"]]
    assert names == ["default", "two"]
    [own] = server.user.json("/v1/queue/projects")["data"]
    assert (own["name"], own["queued_jobs"]) == ("default", 1)
    with server.database.write.begin() as session:
        session.execute(update(ApiKeyRow).where(ApiKeyRow.name == "ann").values(role="lead"))
    with server.database.read() as session:
        by_name = {row.name: row.id for row in session.query(ApiKeyRow)}
    path = f"/v1/queue/keys/{by_name['ann']}"
    assert server.user.post(path, json={"max_queued_jobs": 7}).json()["max_queued_jobs"] == 7
    assert stranger.post(path, json={"max_queued_jobs": 7}).status_code == 404


def test_a_priority_above_zero_needs_a_lead(server: Server) -> None:
    file_id = server.good_file()
    server.worker.hello()
    refused = server.create_reply(file_id, scheduling={"priority": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert server.create_reply(file_id, scheduling={"priority": -1}).status_code == 200
