"""Projects, users, members and keys by the API, and keys that lose their rights at once."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
from sqlalchemy import update

from tunesmith_server.core.security import KEY_PREFIX, key_hash
from tunesmith_server.models import DEFAULT_PROJECT, ApiKeyRow
from tunesmith_server.services import keys

from .actors import ROWS, Server
from .callers import Caller
from .teams import caller, new_project

ORGANIZATION = "/v1/organization"
PROJECTS = f"{ORGANIZATION}/projects"


@pytest.fixture
def admin(server: Server) -> Caller:
    return caller(server, "admin")


def created(sender: Caller, path: str, **body: Any) -> dict[str, Any]:
    reply = sender.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def person(admin: Caller, name: str, **fields: Any) -> str:
    body = {"email": f"{name}@example.org", "name": name, **fields}
    return str(created(admin, f"{ORGANIZATION}/users", **body)["id"])


def test_a_key_is_shown_once_and_stored_as_a_hash(server: Server, admin: Caller) -> None:
    path = f"{PROJECTS}/{DEFAULT_PROJECT}/api_keys"
    key = created(admin, path, name="ci", role="viewer", expires_in_seconds=60)
    assert key["value"].startswith(KEY_PREFIX)
    assert len(key["value"]) == len(KEY_PREFIX) + 43
    assert key["redacted_value"] == f"{key['value'][:11]}..."
    listed = admin.get(path)
    assert key["value"] not in listed.text
    assert [item["id"] for item in listed.json()["data"]].count(key["id"]) == 1
    with server.database.read() as session:
        assert session.get_one(ApiKeyRow, key["id"]).sha256 == key_hash(key["value"])


def test_a_key_of_an_earlier_release_stays_valid(server: Server) -> None:
    with server.database.write.begin() as session:
        keys.create(session, "old", "ts-" + "x" * 43, role="lead")
    assert Caller(server.client, "ts-" + "x" * 43).get("/v1/files").status_code == 200


def test_an_expired_key_opens_nothing(server: Server) -> None:
    old = caller(server, "admin", expires_at=time.time() - 1)
    reply = old.get("/v1/files")
    assert reply.status_code == 401
    assert "has expired" in reply.json()["error"]["message"]


def test_a_key_with_verbs_does_nothing_else(server: Server) -> None:
    reader = caller(server, "lead", verbs=["read"])
    assert reader.get("/v1/files").status_code == 200
    assert reader.json("/v1/me")["verbs"] == ["read"]
    refused = reader.post("/v1/uploads", json={})
    assert refused.status_code == 403
    assert "'write'" in refused.json()["error"]["message"]


def test_no_key_creates_a_stronger_key(server: Server, admin: Caller) -> None:
    path = f"{PROJECTS}/{DEFAULT_PROJECT}/api_keys"
    lead = caller(server, "lead", verbs=["read", "manage"])
    assert lead.post(path, json={"name": "k", "role": "viewer"}).status_code == 200
    assert lead.post(path, json={"name": "k", "role": "member"}).status_code == 403
    assert lead.post(path, json={"name": "k", "role": "admin"}).status_code == 400
    narrow = {"name": "k", "role": "lead", "verbs": ["read"]}
    assert lead.post(path, json=narrow).status_code == 200


def test_a_users_key_has_the_users_rights_at_every_moment(server: Server, admin: Caller) -> None:
    project = f"{PROJECTS}/{DEFAULT_PROJECT}"
    user_id = person(admin, "ann")
    refused = admin.post(f"{project}/api_keys", json={"name": "k", "user_id": user_id})
    assert refused.json()["error"]["param"] == "user_id"
    created(admin, f"{project}/users", email="ANN@example.org", role="viewer")
    body = {"name": "k", "role": "lead", "user_id": user_id}
    made = created(admin, f"{project}/api_keys", **body)
    assert made["owner"]["user"]["email"] == "ann@example.org"
    ann = Caller(server.client, made["value"])
    assert ann.json("/v1/me")["role"] == "viewer"
    created(admin, f"{project}/users/{user_id}", role="member")
    assert ann.json("/v1/me")["role"] == "member"
    assert admin.delete(f"{project}/users/{user_id}").status_code == 200
    assert ann.get("/v1/me").status_code == 401
    created(admin, f"{project}/users", user_id=user_id)
    assert ann.get("/v1/me").status_code == 401, "a revoked key stays revoked"


def test_deleting_a_user_revokes_all_keys(server: Server, admin: Caller) -> None:
    user_id = person(admin, "bob")
    other = new_project(admin)
    callers = []
    for project_id in (DEFAULT_PROJECT, other):
        created(admin, f"{PROJECTS}/{project_id}/users", user_id=user_id)
        body = {"name": "k", "user_id": user_id}
        key = created(admin, f"{PROJECTS}/{project_id}/api_keys", **body)
        callers.append(Caller(server.client, key["value"]))
    assert [bob.get("/v1/files").status_code for bob in callers] == [200, 200]
    assert admin.delete(f"{ORGANIZATION}/users/{user_id}").status_code == 200
    assert [bob.get("/v1/files").status_code for bob in callers] == [401, 401]


def test_keys_of_an_archived_project_open_nothing(server: Server, admin: Caller) -> None:
    project_id = new_project(admin)
    member = caller(server, "member", project_id)
    assert member.get("/v1/files").status_code == 200
    assert admin.post(f"{PROJECTS}/{project_id}/archive").json()["status"] == "archived"
    assert member.get("/v1/files").status_code == 401
    assert admin.post(f"{PROJECTS}/{DEFAULT_PROJECT}/archive").status_code == 400
    shown = [item["id"] for item in admin.json(PROJECTS)["data"]]
    assert shown == [DEFAULT_PROJECT]
    everything = admin.json(PROJECTS, params={"include_archived": True})["data"]
    assert len(everything) == 2


def test_queued_jobs_of_an_archived_project_are_not_claimed(server: Server, admin: Caller) -> None:
    project_id, file_id = new_project(admin), server.good_file()
    long = server.create_job(file_id)
    claim = server.worker.claim()
    queued = server.create_job(file_id, scheduling={"interactive": True})
    server.change_job(queued, project_id=project_id)
    admin.post(f"{PROJECTS}/{project_id}/archive")
    server.janitor().round()
    assert server.worker.report(claim)["control"] == "continue", "it pre-empts no job"
    assert admin.json("/v1/queue")["waiting"] == []
    server.worker.succeed(claim)
    assert server.worker.claim_reply().status_code == 204
    assert server.worker.hello().json()["jobs_waiting"] is False
    assert server.job(long)["state"] == "succeeded"


def test_streams_end_when_rights_end(server: Server, admin: Caller) -> None:
    project_id = new_project(admin)
    with server.database.write.begin() as session:
        row, _ = keys.create(session, "k", project_id=project_id)
        expired, _ = keys.create(session, "e", expires_at=1.0)
        good, _ = keys.create(session, "g")
        boss, _ = keys.create(session, "b", role="admin")
    still = [(row.id, project_id), (boss.id, project_id)]
    opened = [(good.id, DEFAULT_PROJECT), (boss.id, DEFAULT_PROJECT)]
    closed = [(expired.id, DEFAULT_PROJECT), (good.id, project_id), ("key-0", DEFAULT_PROJECT)]
    uses = {*still, *opened, *closed}
    with server.database.read() as session:
        assert keys.valid(session, uses) == {*still, *opened}
    admin.post(f"{PROJECTS}/{project_id}/archive")
    with server.database.read() as session:
        assert keys.valid(session, uses) == {*opened}


def test_the_stream_of_a_former_admin_ends(server: Server, admin: Caller) -> None:
    """A key of an admin who becomes a member still opens its own project, but no other."""
    boss = person(admin, "boss", role="admin")
    created(admin, f"{PROJECTS}/{DEFAULT_PROJECT}/users", user_id=boss)
    other = new_project(admin)
    with server.database.write.begin() as session:
        row, _ = keys.create(session, "b", role="admin", user_id=boss)
    uses = {(row.id, DEFAULT_PROJECT), (row.id, other)}
    with server.database.read() as session:
        assert keys.valid(session, uses) == uses
    created(admin, f"{ORGANIZATION}/users/{boss}", role="member")
    with server.database.read() as session:
        assert keys.valid(session, uses) == {(row.id, DEFAULT_PROJECT)}


def test_an_upload_ends_with_its_key(
    server: Server, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is revoked while a body is stored stores nothing."""
    body = {"bytes": 3, "filename": "a", "mime_type": "x", "purpose": "fine-tune"}
    upload = server.user.post("/v1/uploads", json=body).json()["id"]
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "files.store": (
            "/v1/files",
            {"files": {"file": ("a", ROWS)}, "data": {"purpose": "fine-tune"}},
        ),
        "uploads.announce": (f"/v1/uploads/{upload}/parts", {"files": {"data": b"abc"}}),
    }
    for step, (path, options) in requests.items():
        user = caller(server, "member")
        key = f"{PROJECTS}/{DEFAULT_PROJECT}/api_keys/{user.json('/v1/me')['key_id']}"

        def revoke(*given: object, key: str = key) -> None:
            assert admin.delete(key).status_code == 200

        with monkeypatch.context() as patch:
            patch.setattr(f"tunesmith_server.api.{step}", revoke)
            assert user.post(path, **options).status_code == 401, path
    assert admin.json("/v1/files")["data"] == []
    assert admin.json(f"/v1/uploads/{upload}")["parts"] == []


def test_the_last_use_of_a_key_is_stored(server: Server, admin: Caller) -> None:
    path = f"{PROJECTS}/{DEFAULT_PROJECT}/api_keys"
    made = created(admin, path, name="k")
    user = Caller(server.client, made["value"])
    user.get("/v1/files")
    assert admin.json(f"{path}/{made['id']}")["last_used_at"] is None
    server.janitor().round()
    assert abs(admin.json(f"{path}/{made['id']}")["last_used_at"] - time.time()) < 60
    user.get("/v1/files")
    assert made["id"] not in keys._uses, "written once a minute at most"
    with server.database.write.begin() as session:
        session.execute(update(ApiKeyRow).values(last_used_at=1.0))
    user.get("/v1/files")
    assert made["id"] in keys._uses


def test_pages_of_projects(admin: Caller) -> None:
    ids = [DEFAULT_PROJECT, *(new_project(admin, f"p{number}") for number in range(3))]
    first = admin.json(PROJECTS, params={"limit": 2})
    assert [item["id"] for item in first["data"]] == ids[:2]
    assert first["has_more"]
    rest = admin.json(PROJECTS, params={"after": first["last_id"]})
    assert [item["id"] for item in rest["data"]] == ids[2:]
    assert not rest["has_more"]
    assert admin.get(PROJECTS, params={"after": "proj-0"}).status_code == 400


def test_two_users_cannot_have_one_address(admin: Caller) -> None:
    person(admin, "ann")
    body = {"email": "Ann@Example.org", "name": "other"}
    assert admin.post(f"{ORGANIZATION}/users", json=body).status_code == 409


def test_an_admin_key_cannot_revoke_itself(admin: Caller) -> None:
    own = admin.json("/v1/me")["key_id"]
    assert admin.delete(f"{ORGANIZATION}/admin_api_keys/{own}").status_code == 400
    other = created(admin, f"{ORGANIZATION}/admin_api_keys", name="second")
    assert admin.delete(f"{ORGANIZATION}/admin_api_keys/{other['id']}").status_code == 200


def test_the_openai_client_administers_projects(server: Server) -> None:
    """With strict validation of every response."""
    with server.database.write.begin() as session:
        _, key = keys.create(session, "root", role="admin")
    client = openai.OpenAI(
        base_url="http://testserver/v1",
        api_key=key,
        admin_api_key=key,
        http_client=server.client,
        _strict_response_validation=True,
        max_retries=0,
    )
    organization = client.admin.organization
    project = organization.projects.create(name="Research")
    assert organization.projects.retrieve(project.id).name == "Research"
    assert organization.projects.update(project.id, name="Lab").name == "Lab"
    assert [item.id for item in organization.projects.list()] == [DEFAULT_PROJECT, project.id]
    with server.database.write.begin() as session:
        made, _ = keys.create(session, "service", project_id=project.id)
    api_keys = organization.projects.api_keys
    assert [item.id for item in api_keys.list(project.id)] == [made.id]
    assert api_keys.retrieve(made.id, project_id=project.id).redacted_value.endswith("...")
    assert api_keys.delete(made.id, project_id=project.id).deleted
    second = organization.admin_api_keys.create(name="second")
    assert second.value.startswith(KEY_PREFIX)
    assert organization.admin_api_keys.delete(second.id).deleted
    assert organization.users.list().data == []
    assert organization.projects.archive(project.id).status == "archived"
