"""The audit log: what is in it, and that a change of it is found."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from tunesmith_server.models import DEFAULT_PROJECT, AuditRow
from tunesmith_server.services import audit

from .actors import Server
from .teams import caller

PROJECT = f"/v1/organization/projects/{DEFAULT_PROJECT}"


def log(server: Server) -> list[AuditRow]:
    with server.database.read() as session:
        return list(audit.entries(session))


def verdict(server: Server, head: str | None = None) -> audit.Verdict:
    with server.database.read() as session:
        return audit.verify(session, head)


def test_an_entry_says_who_what_where_before_and_after(server: Server) -> None:
    admin = caller(server, "admin")
    own = admin.json("/v1/me")["key_id"]
    reply = admin.post(PROJECT, json={"name": "Main"})
    [row] = log(server)
    assert (row.seq, row.action) == (1, "POST /organization/projects/{project_id}")
    assert (row.key_id, row.project_id) == (own, DEFAULT_PROJECT)
    assert row.target == {"project_id": DEFAULT_PROJECT}
    assert row.address == "testclient"
    assert row.request_id == reply.headers["x-request-id"]
    assert row.before == [{"table": "projects", "id": DEFAULT_PROJECT, "name": "default"}]
    assert row.after == [{"table": "projects", "id": DEFAULT_PROJECT, "name": "Main"}]


def test_changes_and_reads_of_weights_and_keys_are_in_the_log(server: Server) -> None:
    admin = caller(server, "admin")
    job_id = server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim())
    job = server.job(job_id)
    user = server.user
    user.get(f"/v1/adapters/{job['adapter_id']}/content")
    user.get(f"/v1/files/{job['training_file']}/content")
    key = admin.post(f"{PROJECT}/api_keys", json={"name": "k"}).json()
    admin.get(f"{PROJECT}/api_keys")
    user.delete(f"/v1/fine_tuning/jobs/{job_id}")
    user.get("/v1/files")
    assert user.delete("/v1/files/file-0").status_code == 404
    assert [row.action for row in log(server)] == [
        "POST /files",
        "POST /fine_tuning/jobs",
        "GET /adapters/{adapter_id}/content",
        "GET /files/{file_id}/content",
        "POST /organization/projects/{project_id}/api_keys",
        "GET /organization/projects/{project_id}/api_keys",
        "DELETE /fine_tuning/jobs/{job_id}",
    ]
    whole = json.dumps([row.after for row in log(server)])
    assert key["id"] in whole
    assert key["value"] not in whole
    assert verdict(server).problem is None


def test_the_database_refuses_to_change_the_log(server: Server) -> None:
    server.upload()
    for statement in ("UPDATE audit_log SET action = 'x'", "DELETE FROM audit_log"):
        with server.database.write() as session, pytest.raises(DBAPIError, match="append-only"):
            session.execute(text(statement))
    assert len(log(server)) == 1


CHANGES = {
    "a value": ("UPDATE audit_log SET action = 'x' WHERE seq = 2", "entry 2 was changed", 1),
    "a row": ("DELETE FROM audit_log WHERE seq = 2", "entry 2 is missing", 1),
    "the end": ("DELETE FROM audit_log WHERE seq = 3", "was cut off", 2),
    "a hash": (
        "UPDATE audit_log SET previous = '0', sha256 = '1' WHERE seq = 3",
        "entry 3 does not follow",
        2,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_behind_the_triggers_is_found(server: Server, name: str) -> None:
    for _ in range(3):
        server.upload()
    head = verdict(server).head
    assert verdict(server, head).problem is None
    statement, problem, whole = CHANGES[name]
    _change(server, statement)
    found = verdict(server, head)
    assert problem in str(found.problem)
    assert found.entries == whole


def _change(server: Server, statement: str) -> None:
    """Change the log as somebody with all rights on the database can."""
    on_postgresql = server.database.engine.dialect.name == "postgresql"
    with server.database.engine.begin() as connection:
        if on_postgresql:
            connection.execute(text("ALTER TABLE audit_log DISABLE TRIGGER USER"))
        else:
            for verb in ("UPDATE", "DELETE"):
                connection.execute(text(f"DROP TRIGGER audit_log_no_{verb}"))
        connection.execute(text(statement))


def test_concurrent_requests_make_one_chain(server: Server) -> None:
    upload: dict[str, Any] = {"bytes": 9, "filename": "a", "mime_type": "x", "purpose": "fine-tune"}
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: server.user.post("/v1/uploads", json=upload), range(24)))
    assert {reply.status_code for reply in replies} == {200}
    found = verdict(server)
    assert (found.entries, found.problem) == (24, None)


def test_no_key_is_in_the_log(server: Server) -> None:
    admin = caller(server, "admin")
    made = admin.post("/v1/organization/admin_api_keys", json={"name": "second"}).json()
    with server.database.read() as session:
        shown = session.scalars(select(AuditRow)).one()
    assert made["value"] not in str(vars(shown))
    assert "sha256" not in shown.after[0]
