"""Evaluations of several projects: nothing of another project is shown, used or delayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import update

from tunesmith_server.models import AdapterRow, ApiKeyRow, WorkerRow
from tunesmith_server.scheduling import usage

from .actors import ROWS, Server
from .teams import caller, new_project, two_teams
from .test_requested_evaluations import BASE, PATH, claim, create, end


def test_a_repeated_key_of_an_admin_shows_no_evaluation_of_another_project(server: Server) -> None:
    admin, own, other = two_teams(server)
    header = {"idempotency-key": "same"}
    first = admin.post(PATH, json={"model": BASE, "file": own.file_id}, headers=header)
    assert first.status_code == 200
    elsewhere = {**header, "openai-project": other.project_id}
    body = {"model": BASE, "file": other.file_id}
    refused = admin.post(PATH, json=body, headers=elsewhere)
    assert (refused.status_code, first.json()["id"] in refused.text) == (409, False)
    # The same key of two callers makes two requests.
    replies = [
        team.server.user.post(PATH, json={"model": BASE, "file": team.file_id}, headers=header)
        for team in (own, other)
    ]
    assert replies[0].json()["id"] != replies[1].json()["id"]


def test_a_shared_model_is_not_compared_with_a_private_base(server: Server) -> None:
    admin, own, other = two_teams(server)
    theirs = {"openai-project": other.project_id}
    path = f"/v1/fine_tuning/checkpoints/{other.model}/permissions"
    admin.post(path, json={"project_ids": [own.project_id]}, headers=theirs)
    private = f"{other.model}:ckpt-step-1"
    with server.database.write.begin() as session:
        shared = update(AdapterRow).where(AdapterRow.model == other.model)
        session.execute(shared.values(base_model=private))
    body = {"model": other.model, "file": own.file_id}
    assert own.server.user.post(PATH, json=body).json()["against"] is None
    body["against"] = private
    assert own.server.user.post(PATH, json=body).status_code == 404
    body = {"model": other.model, "file": other.file_id}
    assert other.server.user.post(PATH, json=body).json()["against"] == private


def test_a_lead_cannot_limit_an_admin_key(server: Server) -> None:
    lead, admin = caller(server, "lead"), caller(server, "admin")
    key_id = admin.json("/v1/me")["key_id"]
    path, limits = f"/v1/queue/keys/{key_id}", {"max_queued_jobs": 0}
    assert lead.post(path, json=limits).status_code == 404
    own = f"/v1/queue/keys/{lead.json('/v1/me')['key_id']}"
    assert lead.post(own, json=limits).status_code == 200


def test_a_limit_of_a_key_holds_in_all_projects(server: Server) -> None:
    admin = caller(server, "admin")
    project_id = new_project(admin)
    mine = replace(server, user=admin)
    mine.create_job(mine.good_file())
    with server.database.write.begin() as session:
        session.execute(update(ApiKeyRow).values(max_queued_jobs=1))
    member = replace(server, user=caller(server, "member", project_id))
    body = {"model": BASE, "training_file": member.good_file(ROWS * 2)}
    header = {"openai-project": project_id}
    reply = admin.post("/v1/fine_tuning/jobs", json=body, headers=header)
    assert reply.status_code == 429
    assert "this key has 1 waiting jobs" in reply.text


def idle_seconds(server: Server) -> Any:  # Any: JSON
    return server.user.json("/v1/usage")["idle_seconds"]


def test_a_worker_that_evaluates_is_not_idle(server: Server) -> None:
    create(server, file=server.good_file())
    claimed = claim(server)
    before = idle_seconds(server)
    for expected in (0, 20):
        with server.database.write.begin() as session:
            now = usage.database_now(session)
            session.execute(update(WorkerRow).values(last_seen=now - 20))
        server.worker.hello()
        assert abs(idle_seconds(server) - before - expected) < 3
        if not expected:
            failure = {"category": "data", "code": "dataset_invalid", "message": "bad"}
            assert end(server, claimed, "failed", error=failure).status_code == 200
