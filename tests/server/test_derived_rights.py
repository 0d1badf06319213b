"""Rights that one key gives to another key, a member or a job: never more than it has itself."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import select, update

from tunesmith_server.core.settings import Settings
from tunesmith_server.models import DEFAULT_PROJECT, ApiKeyRow, AuditRow
from tunesmith_server.services import keys

from .actors import FakeWakeUps, Server, serving
from .callers import Caller
from .teams import caller, new_project

PROJECT = f"/v1/organization/projects/{DEFAULT_PROJECT}"
KEYS = f"{PROJECT}/api_keys"
ADMIN_KEYS = "/v1/organization/admin_api_keys"
HOUR = 3600


def row_of(server: Server, key_id: str) -> ApiKeyRow:
    with server.database.read() as session:
        return session.get_one(ApiKeyRow, key_id)


def refusal(sender: Caller, path: str, **body: Any) -> str:
    """Return the field that a refusal names."""
    reply = sender.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied"), body
    return str(reply.json()["error"]["param"])


def made(sender: Caller, path: str, **body: Any) -> dict[str, Any]:
    reply = sender.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


@pytest.mark.parametrize(("role", "path"), [("lead", KEYS), ("admin", KEYS), ("admin", ADMIN_KEYS)])
def test_a_key_does_not_outlive_its_maker(server: Server, role: Any, path: str) -> None:
    end = time.time() + HOUR
    maker = caller(server, role, expires_at=end)
    assert made(maker, path, name="k")["expires_at"] == int(end)
    short = made(maker, path, name="k", expires_in_seconds=60)
    assert abs(short["expires_at"] - time.time() - 60) < 10
    assert refusal(maker, path, name="k", expires_in_seconds=HOUR + 60) == "expires_in_seconds"
    assert made(caller(server, role), path, name="k")["expires_at"] is None


def test_a_key_sends_no_more_requests_than_its_maker(server: Server) -> None:
    lead = caller(server, "lead", requests_per_minute=50)
    assert made(lead, KEYS, name="k")["requests_per_minute"] == 50
    assert made(lead, KEYS, name="k", requests_per_minute=20)["requests_per_minute"] == 20
    assert refusal(lead, KEYS, name="k", requests_per_minute=51) == "requests_per_minute"


def test_only_an_admin_goes_beyond_the_servers_rate(
    settings: Settings, wake_ups: FakeWakeUps
) -> None:
    limited = settings.model_copy(update={"requests_per_minute": 60})
    with serving(limited, wake_ups) as server:
        lead, admin = caller(server, "lead"), caller(server, "admin")
        assert made(lead, KEYS, name="k")["requests_per_minute"] is None
        assert refusal(lead, KEYS, name="k", requests_per_minute=61) == "requests_per_minute"
        assert made(admin, KEYS, name="k", requests_per_minute=600)["requests_per_minute"] == 600


def test_a_key_inherits_limits_and_cannot_raise_them(server: Server) -> None:
    lead = caller(server, "lead")
    own = lead.json("/v1/me")["key_id"]
    with server.database.write.begin() as session:
        limits = {"max_running_jobs": 2, "max_queued_jobs": 4, "max_device_hours": 1.5}
        session.execute(update(ApiKeyRow).where(ApiKeyRow.id == own).values(**limits))
    key = made(lead, KEYS, name="k")["id"]
    for key_id in (own, key):
        row = row_of(server, key_id)
        assert {name: getattr(row, name) for name in limits} == limits
        path = f"/v1/queue/keys/{key_id}"
        assert refusal(lead, path, max_running_jobs=3) == "max_running_jobs"
        assert refusal(lead, path, max_queued_jobs=None) == "max_queued_jobs"
        assert refusal(lead, path, max_device_hours=1.6) == "max_device_hours"
        assert {name: getattr(row_of(server, key_id), name) for name in limits} == limits
    assert made(lead, f"/v1/queue/keys/{key}", max_running_jobs=1)["max_running_jobs"] == 1
    admin = caller(server, "admin")
    assert made(admin, f"/v1/queue/keys/{own}", max_running_jobs=9)["max_running_jobs"] == 9


def test_a_key_gives_no_member_a_verb_that_it_lacks(server: Server) -> None:
    admin = caller(server, "admin")
    user = made(admin, "/v1/organization/users", email="a@example.org", name="A")["id"]
    clerk = caller(server, "lead", verbs=["read", "manage"])
    assert refusal(clerk, f"{PROJECT}/users", user_id=user, role="member") == "role"
    assert made(clerk, f"{PROJECT}/users", user_id=user, role="viewer")["role"] == "viewer"
    assert refusal(clerk, f"{PROJECT}/users/{user}", role="lead") == "role"
    lead = caller(server, "lead")
    assert made(lead, f"{PROJECT}/users/{user}", role="lead")["role"] == "lead"


def test_a_narrow_admin_key_creates_no_full_one(server: Server) -> None:
    narrow = caller(server, "admin", verbs=["read", "administer"])
    assert refusal(narrow, ADMIN_KEYS, name="k") == "role"


def test_a_repeated_job_has_no_priority_that_its_caller_may_not_give(server: Server) -> None:
    lead, member = caller(server, "lead"), server.user
    body = {"model": "tiny-llama", "training_file": server.good_file()}
    server.worker.hello()
    urgent = made(lead, "/v1/fine_tuning/jobs", **body, scheduling={"priority": 50})["id"]
    jobs = f"/v1/fine_tuning/jobs/{urgent}"
    server.add_resume_points(urgent, 1)
    made(lead, f"{jobs}/cancel")
    for verb in ("retry", "fork"):
        priorities = [
            made(sender, f"{jobs}/{verb}")["scheduling"]["priority"] for sender in (lead, member)
        ]
        assert priorities == [50, 0], verb


def test_a_reservation_shows_project_and_reason_to_that_project_only(server: Server) -> None:
    admin = caller(server, "admin")
    other = new_project(admin)
    server.worker.hello()
    window = {"worker": "here", "starts_at": 0, "reason": "secret launch", "project_id": other}
    made(admin, "/v1/reservations", **window)
    job_id = server.create_job(server.good_file())
    shown = [
        sender.get(path).text
        for sender in (server.user, caller(server, "lead"))
        for path in ("/v1/reservations", "/v1/workers", f"/v1/fine_tuning/jobs/{job_id}")
    ]
    assert all("reserved for another project" in text for text in shown)
    assert not any(other in text or "secret launch" in text for text in shown)
    for sender in (admin, caller(server, "viewer", other)):
        [seen] = sender.json("/v1/reservations")["data"]
        assert (seen["project_id"], seen["reason"]) == (other, "secret launch")
        [worker] = sender.json("/v1/workers")["data"]
        assert worker["reason"] == f"here is reserved for {other} (secret launch)"


def test_revoked_keys_of_a_removed_user_are_in_the_audit_log(server: Server) -> None:
    admin = caller(server, "admin")
    user = made(admin, "/v1/organization/users", email="a@example.org", name="A")["id"]
    made(admin, f"{PROJECT}/users", user_id=user)
    first, second = (made(admin, KEYS, name=name, user_id=user)["id"] for name in "ab")
    assert admin.delete(f"{PROJECT}/users/{user}").status_code == 200
    with server.database.write.begin() as session:
        third = keys.create(session, "c", user_id=user)[0].id
    made(admin, f"{PROJECT}/users", user_id=user)
    assert admin.delete(f"/v1/organization/users/{user}").status_code == 200
    with server.database.read() as session:
        log = {row.action: row for row in session.scalars(select(AuditRow))}
    removed = log["DELETE /organization/projects/{project_id}/users/{user_id}"]
    assert {row["id"] for row in removed.after if row["table"] == "api_keys"} == {first, second}
    deleted = log["DELETE /organization/users/{user_id}"]
    assert [row["id"] for row in deleted.after if row["table"] == "api_keys"] == [third]
    tables = {row["table"] for row in deleted.before}
    assert tables == {"api_keys", "project_members", "users"}
