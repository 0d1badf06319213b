"""`GET /v1/organization/audit_logs`: filters, pages, rights, and a chain that anybody can check."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith_server.models import DEFAULT_PROJECT, AuditRow
from tunesmith_server.services import audit

from .actors import Server
from .callers import Caller
from .teams import caller, new_project

LOGS = "/v1/organization/audit_logs"


@pytest.fixture
def admin(server: Server) -> Caller:
    return caller(server, "admin")


def listed(admin: Caller, **params: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = admin.json(LOGS, params=params)["data"]
    return entries


def test_filters_select_entries(server: Server, admin: Caller) -> None:
    other = new_project(admin)
    file_id = server.upload()
    theirs = {"openai-project": other}
    upload = {"bytes": 9, "filename": "a", "mime_type": "x", "purpose": "fine-tune"}
    admin.post("/v1/uploads", json=upload, headers=theirs)
    server.user.delete(f"/v1/files/{file_id}")
    newest, second, third, oldest = listed(admin)
    assert newest["action"] == "DELETE /files/{file_id}"
    assert newest["target"] == {"file_id": file_id}
    assert listed(admin, order="asc", limit=1) == [oldest]
    assert listed(admin, project_id=other) == [second]
    assert listed(admin, project_id=DEFAULT_PROJECT) == [newest, third, oldest]
    assert listed(admin, actor_id=newest["key_id"]) == [newest, third]
    assert listed(admin, action="DELETE ") == [newest]
    assert listed(admin, action="%") == []
    assert listed(admin, object_id=file_id) == [newest, third], "made and deleted"
    assert listed(admin, object_id=file_id[:-1]) == []
    assert listed(admin, created_after=int(newest["at"]) + 1) == []
    assert len(listed(admin, created_before=int(newest["at"]) + 1)) == 4
    assert listed(admin, actor_id=newest["key_id"], action="POST ") == [third]


def test_pages_join(server: Server, admin: Caller) -> None:
    for number in range(5):
        server.upload(filename=f"{number}.jsonl")
    for order in ("asc", "desc"):
        whole = listed(admin, order=order)
        found: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            page = admin.json(LOGS, params={"limit": 2, "order": order, **after})
            found += page["data"]
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
        assert found == whole
        assert len(found) == 5
    for wrong in ("audit-99", "audit-0", "file-1", "audit-1' OR 1"):
        assert admin.get(LOGS, params={"after": wrong}).status_code == 400, wrong


def test_the_listed_entries_are_a_whole_chain(server: Server, admin: Caller) -> None:
    """An exported log can be checked without the database."""
    for _ in range(3):
        server.upload()
    names = [column.name for column in AuditRow.__table__.columns]
    previous = "0" * 64
    for entry in listed(admin, order="asc"):
        row = AuditRow(**{name: entry[name] for name in names})
        assert audit.digest(row) == entry["sha256"]
        assert entry["previous"] == previous
        previous = entry["sha256"]
    with server.database.read() as session:
        assert audit.verify(session).head == previous


def test_only_admins_read_the_log(server: Server, admin: Caller) -> None:
    """A lead does not: the log has addresses and e-mail addresses of the whole organization."""
    for role in ("viewer", "member", "lead"):
        assert caller(server, role).get(LOGS).status_code == 403
    assert caller(server, "admin", verbs=["read"]).get(LOGS).status_code == 403
    assert server.anonymous.get(LOGS).status_code == 401
    assert admin.get(LOGS).status_code == 200
