"""The SDK and the command line administer projects of a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import tunesmith
from tunesmith import Client
from tunesmith.cli import app

from .actors import Server
from .live import listening
from .teams import caller


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with listening(server.app) as address:
        yield f"{address}/v1"


@pytest.fixture
def admin_key(server: Server) -> str:
    return caller(server, "admin").headers["authorization"].removeprefix("Bearer ")


def test_the_sdk_does_what_the_api_does(url: str, admin_key: str) -> None:
    with Client(url, admin_key) as admin:
        organization = admin.admin.organization
        project = organization.projects.create(name="Lab", max_bytes=10**9)
        assert organization.projects.update(project.id, base_models=["tiny-llama"]).max_bytes
        assert organization.projects.update(project.id, max_bytes=None).max_bytes is None
        assert organization.projects.retrieve(project.id).base_models == ["tiny-llama"]
        user = organization.users.create(email="ann@example.org", name="Ann")
        assert organization.users.update(user.id, name="Anna").name == "Anna"
        assert [item.id for item in organization.users.list(emails=["ANN@example.org"])] == [
            user.id
        ]
        members = organization.projects.users
        assert members.create(project.id, email="ann@example.org").role == "member"
        assert members.update(user.id, project_id=project.id, role="lead").role == "lead"
        assert [item.id for item in members.list(project.id)] == [user.id]
        keys = organization.projects.api_keys
        key = keys.create(project.id, name="k", role="lead", user_id=user.id, verbs=["read"])
        assert keys.retrieve(key.id, project_id=project.id).verbs == ["read"]
        with Client(url, key.value) as ann:
            me = ann.me()
            assert (me.name, me.project.id, me.verbs) == ("Anna", project.id, ["read"])
            with pytest.raises(tunesmith.PermissionDeniedError, match="'write'"):
                ann.files.delete("file-0")
        assert keys.delete(key.id, project_id=project.id).deleted
        assert list(keys.list(project.id)) == []
        assert members.delete(user.id, project_id=project.id).deleted
        assert organization.users.delete(user.id).deleted
        logs = organization.audit_logs
        [made, *_] = logs.list(object_id=key.id, order="asc", limit=1)
        assert (made.action.split()[0], made.target) == ("POST", {"project_id": project.id})
        assert len(list(logs.list(object_id=project.id, limit=2))) > 2
        second = organization.admin_api_keys.create(name="second")
        assert organization.admin_api_keys.retrieve(second.id).name == "second"
        assert organization.admin_api_keys.delete(second.id).deleted
        with Client(url, admin_key, project=project.id) as there:
            assert there.me().project.name == "Lab"
        assert organization.projects.archive(project.id).status == "archived"
        assert project.id not in [item.id for item in organization.projects.list()]


def test_the_command_line_does_the_same(
    server: Server, url: str, admin_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESMITH_BASE_URL", url)
    monkeypatch.setenv("TUNESMITH_API_KEY", admin_key)

    def run(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result.output

    project = json.loads(run("projects", "create", "Lab", "--quota", "2", "--json"))
    assert project["max_bytes"] == 2 * 1024**3
    assert "quota" in run("projects", "update", project["id"], "--quota", "none")
    assert "2" in run("projects", "update", project["id"], "--quota", "many", status=2)
    assert project["id"] in run("projects", "list")
    user = json.loads(run("users", "add", "ann@example.org", "Ann", "--json"))
    assert "lead" in run(
        "projects", "members", "add", project["id"], user["email"], "--role", "lead"
    )
    assert "ann@example.org" in run("projects", "members", "list", project["id"])
    made = json.loads(
        run("projects", "keys", "create", project["id"], "k", "--days", "1", "--json")
    )
    listed = run("projects", "keys", "list", project["id"], "--json")
    assert made["id"] in listed
    assert made["value"] not in listed
    assert "Lab" in run("--api-key", made["value"], "whoami")
    assert "verb" in run("projects", "keys", "create", project["id"], "k", "--verb", "x", status=2)
    job_id = server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim())
    model = server.job(job_id)["fine_tuned_model"]
    run("models", "share", model, project["id"])
    assert model in run("--api-key", made["value"], "models", "list", "--json")
    run("models", "unshare", model, project["id"])
    assert model not in run("--api-key", made["value"], "models", "list", "--json")
    assert "is not shared" in run("models", "unshare", model, project["id"], status=1)
    run("projects", "keys", "revoke", project["id"], made["id"])
    run("--api-key", made["value"], "whoami", status=1)
    found = run("audit", "search", "--object", made["id"], "--action", "DELETE")
    assert made["id"] in found
    assert "POST" not in found
    assert json.loads(run("audit", "search", "--json", "--limit", "1"))["has_more"]
    run("projects", "members", "remove", project["id"], user["id"])
    run("users", "delete", user["id"])
    assert "archived" in run("projects", "archive", project["id"])
