"""Canary test: secrets are neither stored, logged nor shown again. Only their hashes are stored."""

from __future__ import annotations

import io
import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response
from sqlalchemy import text

from tunesmith_schema.log_lines import LineFormatter
from tunesmith_server.__main__ import main
from tunesmith_server.core.database import Base
from tunesmith_server.core.security import SHOWN_LETTERS, key_hash
from tunesmith_server.models import DEFAULT_PROJECT
from tunesmith_server.services import keys
from tunesmith_server.services.training import jobs

from .actors import Server
from .callers import Caller
from .teams import Team, caller, two_teams
from .test_isolation import aimed, attacks, names_of

KEYS = f"/v1/organization/projects/{DEFAULT_PROJECT}/api_keys"
ADMIN_KEYS = "/v1/organization/admin_api_keys"
WRITTEN_BY_DESIGN = {"worker-token", "api-key"}
"""Files of the data directory that only its owner can read."""


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All log lines down to DEBUG, as the server writes them."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def replies(server: Server) -> list[bytes]:
    """Headers and bodies of all replies, except those that show a new key once."""
    seen: list[bytes] = []

    def note(reply: Response) -> None:
        content = reply.read()
        if not (b'"value":"tunesk-' in content and reply.request.method == "POST"):
            seen.append(str(reply.headers).encode() + content)

    server.client.event_hooks = {"response": [note]}
    return seen


def at_rest(server: Server) -> bytes:
    """Everything that the server has stored: all rows, and all files of the data directory."""
    parts = []
    for file in server.settings.data_dir.rglob("*"):
        if file.is_file() and file.name not in WRITTEN_BY_DESIGN:
            parts.append(file.read_bytes())
    with server.database.read() as session:
        for table in Base.metadata.sorted_tables:
            rows = session.execute(text(f"SELECT * FROM {table.name}")).all()
            parts += [repr(tuple(row)).encode() for row in rows]
    return b"\n".join(parts)


def use_wrongly(server: Server, sender: Caller, key: str) -> None:
    """Send a key to the places where people and programs put it by mistake."""
    headers = {"x-request-id": key, "idempotency-key": "once", "openai-project": "proj-0"}
    sender.get("/v1/files", headers=headers)
    sender.post("/v1/uploads", json={"bytes": 1}, headers={"x-request-id": key})
    for path in ("/v1/files?api_key=", "/v1/files?after=", "/healthz?key=", "/nowhere?key="):
        server.anonymous.get(path + key)
    server.anonymous.get("/v1/files", headers={"authorization": f"Basic {key}"})
    server.anonymous.get("/v1/files", headers={"authorization": f"Bearer {key[:-1]}"})
    server.anonymous.post("/internal/jobs/claim", headers={"authorization": f"Bearer {key}"})


def log_paths(server: Server, key: str) -> None:
    """Send a key in paths: the reply may repeat the path to its sender, but the log may not."""
    server.client.event_hooks = {}
    server.user.get(f"/v1/files/{key}")
    server.user.delete(f"/v1/fine_tuning/jobs/{key}")
    server.anonymous.get(f"/nowhere/{key}")


def fail_inside(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise an error whose traceback goes through the check of the key."""

    def broken(*given: Any, **named: Any) -> Any:  # Any: never returns
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "list_jobs", broken)
        assert server.user.get("/v1/fine_tuning/jobs").status_code == 500
        patch.setattr(keys, "_role", broken)
        assert server.user.get("/v1/files").status_code == 500


def made_keys(admin: Caller) -> list[tuple[str, str, str]]:
    """Return the value, the id and the list of new keys of every kind."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        (KEYS, {"name": "k", "role": role}) for role in ("viewer", "member", "lead")
    ]
    bodies += [(KEYS, {"name": "e", "expires_in_seconds": 60}), (ADMIN_KEYS, {"name": "k"})]
    made = [(path, admin.post(path, json=body).json()) for path, body in bodies]
    return [(key["value"], key["id"], path) for path, key in made]


def made_link(server: Server, user: Caller, job_id: str) -> str:
    """Make a link that shows a job, open it rightly and wrongly, and return its secret."""
    path = f"/v1/fine_tuning/jobs/{job_id}/links"
    made = user.post(path).json()
    server.anonymous.get(made["path"])
    for wrong in (f"{made['path']}x", made["path"].replace("?", "/curve.png?")):
        server.anonymous.get(wrong)
    return str(made["path"].partition("link=")[2])


def use_and_revoke(server: Server, admin: Caller, own: Team, other: Team) -> list[str]:
    """Use keys of every kind in every kind of request, then revoke them and use them again."""
    values, names = [], names_of(other)
    lead = caller(server, "lead")
    for method, target, options in attacks():
        lead.send(method, aimed(target, own, names), **aimed(options, own, names))
    values.append(lead.headers["authorization"].removeprefix("Bearer "))
    for value, key_id, path in made_keys(admin):
        user = Caller(server.client, value)
        use_wrongly(server, user, value)
        admin.get(path)
        admin.get(f"{path}/{key_id}")
        admin.delete(f"{path}/{key_id}")
        user.get("/v1/me")
        values.append(value)
    return values


def test_no_secret_is_stored_logged_or_shown_again(
    server: Server,
    log: io.StringIO,
    replies: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin, own, other = two_teams(server)
    values = use_and_revoke(server, admin, own, other)
    credential = server.worker.credential("canary")["authorization"]
    worker = {"authorization": credential}
    server.anonymous.post("/internal/workers/hello", json={}, headers=worker)
    server.anonymous.get("/v1/files", headers=worker)
    stranger = {"authorization": f"Bearer canary:{secrets.token_hex(16)}"}
    server.anonymous.post("/internal/jobs/claim", json={"worker_id": "canary"}, headers=stranger)
    server.janitor().round()
    fail_inside(server, monkeypatch)
    log_paths(server, values[0])
    token = server.settings.worker_token.get_secret_value()
    canaries = [value[SHOWN_LETTERS:] for value in values]
    link = made_link(server, own.server.user, own.job_id)
    canaries += [credential.rpartition(":")[2], token, link]
    assert all(len(canary) >= 32 for canary in canaries)
    stored = at_rest(server)
    places = {
        "rows and files": stored,
        "log": log.getvalue().encode(),
        "replies": b"\n".join(replies),
    }
    for place, content in places.items():
        for canary in canaries:
            assert canary.encode() not in content, place
    for value in (*values, link):
        assert key_hash(value).encode() in stored, "the search reads the rows of keys"
        assert key_hash(value).encode() not in places["replies"]
        assert key_hash(value).encode() not in places["log"]
    assert b"broken" in places["log"]
    assert b"RuntimeError" in places["log"]
    assert b"GET /v1/files/tunesk-... 404" in places["log"]
    assert len(replies) > 150


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_commands_show_a_key_once(
    server: Server,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TUNESMITH_DATA_DIR", str(server.settings.data_dir))
    assert main(["keys", "create", "cli", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert server.anonymous.get("/v1/me", headers=bearer(made["key"])).status_code == 200
    for command in ("keys list", "audit list", "keys revoke " + made["id"], "audit list"):
        assert main([*command.split(), "--json"]) == 0
    shown = capsys.readouterr().out
    assert made["id"] in shown
    for place in (shown.encode(), log.getvalue().encode(), at_rest(server)):
        assert made["key"][SHOWN_LETTERS:].encode() not in place


def bearer(value: str) -> dict[str, str]:
    return {"authorization": f"Bearer {value}"}


def test_the_search_finds_what_is_stored(server: Server, log: io.StringIO) -> None:
    """The canary test can fail: its search finds a planted text in a file, a row and the log."""
    server.upload(b'{"prompt": "planted-in-a-file"}\n', filename="planted-in-a-row.jsonl")
    server.user.get("/v1/files/planted-in-a-path")
    stored = at_rest(server)
    assert b"planted-in-a-file" in stored
    assert b"planted-in-a-row" in stored
    assert "planted-in-a-path" in log.getvalue()
    assert caller(server, "viewer").headers["authorization"].split()[1] not in log.getvalue()
