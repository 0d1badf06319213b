"""Evaluations of several projects: nothing of another project is shown, used or delayed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from tunesmith_server.core.errors import NotFound
from tunesmith_server.models import AdapterRow, ApiKeyRow, EvaluationRow, ProjectRow, WorkerRow
from tunesmith_server.scheduling import snapshot, usage
from tunesmith_server.services.catalogue import evaluation_leases, served_models

from .actors import ROWS, Server
from .callers import Caller
from .teams import Team, caller, new_project, two_teams
from .test_requested_evaluations import BASE, PATH, RESULT, claim, create, end, renew


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


def share(admin: Caller, team: Team, with_team: Team) -> None:
    path = f"/v1/fine_tuning/checkpoints/{team.model}/permissions"
    theirs = {"openai-project": team.project_id}
    body = {"project_ids": [with_team.project_id]}
    assert admin.post(path, json=body, headers=theirs).status_code == 200


def test_a_shared_model_is_asked_with_its_private_base(server: Server) -> None:
    """Sharing a model lets the other project use its base through the model, and only so."""
    admin, own, other = two_teams(server)
    share(admin, other, own)
    private = f"{other.model}:ckpt-step-1"
    with server.database.write.begin() as session:
        shared = update(AdapterRow).where(AdapterRow.model == other.model)
        session.execute(shared.values(base_model=private))
    with server.user_session() as session:
        model = served_models.resolve(session, server.settings, other.model)
        assert model.base is not None
        assert (model.base.id, bool(model.base.files)) == (private, True)
        with pytest.raises(NotFound):
            served_models.resolve(session, server.settings, private)


def test_an_evaluation_does_not_tell_another_projects_training_file(server: Server) -> None:
    admin, own, other = two_teams(server)
    share(admin, other, own)
    copy = own.server.good_file(ROWS + other.project_id.encode())
    mine = create(own.server, model=other.model, file=copy)
    theirs = create(other.server, model=other.model, file=other.file_id)
    claims = [claim(server, f"worker-{number}") for number in range(4)]
    on = {claimed["evaluation_id"]: claimed["on"] for claimed in claims}
    assert (on[mine["id"]], on[theirs["id"]]) == ("file", "training_file")


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


def test_evaluations_of_one_project_do_not_block_another(server: Server) -> None:
    admin = caller(server, "admin")
    two = replace(server, user=caller(server, "member", new_project(admin)))
    file_id, foreign = server.good_file(), two.good_file(ROWS * 2)
    for _ in range(evaluation_leases.MAX_CANDIDATES + 1):
        create(server, file=file_id)
    later, job_id = create(two, file=foreign), two.create_job(foreign)
    claimed = claim(server)
    with server.database.write.begin() as session:
        since = EvaluationRow.lease_until - 60
        session.execute(update(EvaluationRow).values(lease_until=since))
    assert renew(server, claimed) == 200  # charges a minute to the first project
    next_one = claim(server, "worker-2")
    assert next_one["evaluation_id"] == later["id"]
    assert claim(server, "worker-3") is None, "a job of the other project goes first"
    assert server.worker.claim("worker-3")["job_id"] == job_id
    assert claim(server, "worker-4")["evaluation_id"]
    [used] = server.user.json("/v1/usage")["data"]
    assert abs(used["device_seconds"] - 60) < 5


def test_an_interactive_job_goes_before_older_evaluations(server: Server) -> None:
    file_id = server.good_file()
    create(server, file=file_id)
    job_id = server.create_job(file_id, scheduling={"interactive": True})
    assert claim(server) is None
    assert server.worker.claim()["job_id"] == job_id
    assert claim(server, "worker-2") is not None


def test_limits_count_evaluations(server: Server) -> None:
    file_id = server.good_file()
    with server.database.write.begin() as session:
        session.execute(update(ProjectRow).values(max_running_jobs=1, max_queued_jobs=2))
    for _ in range(2):
        create(server, file=file_id)
    full = server.user.post(PATH, json={"model": BASE, "file": file_id})
    assert (full.status_code, full.json()["error"]["code"]) == (429, "quota_exceeded")
    first = claim(server)
    assert claim(server, "worker-2") is None
    server.create_job(file_id)
    assert server.worker.claim_reply("worker-3").status_code == 204
    end(server, first, "succeeded", result=RESULT)
    with server.database.write.begin() as session:
        session.execute(update(ProjectRow).values(max_device_hours=0.0))
    assert claim(server, "worker-2") is None


def test_a_worker_that_evaluates_is_busy(server: Server) -> None:
    file_id = server.good_file()
    create(server, file=file_id)
    claim(server)
    job_id = server.create_job(file_id)
    [worker] = server.user.json("/v1/workers")["data"]
    assert worker["state"] == "busy"
    assert server.user.json("/v1/queue")["free_devices"] == 0
    job = server.job(job_id)
    assert job["waiting_because"] == {
        "code": "devices_busy",
        "message": "the only device that fits is busy (evaluations: 1)",
    }
    assert 30 < job["estimated_start"]["at"] - time.time() < 90


def test_jobs_of_one_project_do_not_hide_those_of_another(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = replace(server, user=caller(server, "member", new_project(caller(server, "admin"))))
    monkeypatch.setattr(snapshot, "MAX_WAITING", 2)
    ids = []
    for team, content in ((server, ROWS), (two, ROWS * 2)):
        file_id = team.good_file(content)
        first, *_ = [team.create_job(file_id) for _ in range(3)]
        ids.append(first)
    places = [server.job(ids[0])["queue_position"], two.job(ids[1])["queue_position"]]
    assert sorted(places) == [1, 2]


def test_a_withdrawn_model_is_not_evaluated(server: Server) -> None:
    admin, own, other = two_teams(server)
    for team in (own, other):
        team.server.user.post(f"{PATH}/{team.evaluation_id}/cancel")
    theirs = {"openai-project": other.project_id}
    path = f"/v1/fine_tuning/checkpoints/{other.model}/permissions"
    body = {"project_ids": [own.project_id]}
    [permission] = admin.post(path, json=body, headers=theirs).json()["data"]
    made = create(own.server, model=other.model, file=own.file_id)
    again = create(own.server, model=other.model, file=own.file_id)
    assert claim(server)["evaluation_id"] == made["id"]
    assert admin.delete(f"{path}/{permission['id']}", headers=theirs).status_code == 200
    assert claim(server, "worker-2") is None
    found = own.server.user.json(f"{PATH}/{again['id']}")
    assert (found["status"], found["error"]["code"]) == ("failed", "model_not_found")


def test_an_evaluation_leaves_a_drained_worker(server: Server) -> None:
    made = create(server, file=server.good_file())
    claimed = claim(server)
    admin = caller(server, "admin")
    for name in ("worker-1", admin.json("/v1/workers")["data"][0]["host"]):
        assert admin.post(f"/v1/workers/{name}/drain").status_code == 200
    with server.database.write.begin() as session:
        assert evaluation_leases.take_back_reserved(session, server.wake_ups) == 1
    assert renew(server, claimed) == 409
    assert claim(server) is None
    for name in ("worker-1", admin.json("/v1/workers")["data"][0]["host"]):
        assert admin.delete(f"/v1/workers/{name}/drain").status_code == 200
    assert claim(server, "worker-2")["evaluation_id"] == made["id"]
