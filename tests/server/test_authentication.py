"""Every route of the app's own table requires a key."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from tunesmith_server.core.security import KEY_PREFIX
from tunesmith_server.services import keys

from .actors import Server, new_key
from .callers import Caller

OPEN = {"/healthz", "/readyz", "/openapi.json", "/docs", "/docs/static/0/0"}


def routes(server: Server) -> list[tuple[str, str]]:
    """(method, path) of every route, with parameters filled in."""
    found: list[tuple[str, str]] = []
    for entry in server.app.routes:
        included = getattr(entry, "include_context", None)  # FastAPI nests included routers
        prefix = included.prefix if included else ""
        for route in included.included_router.routes if included else [entry]:
            assert isinstance(route, Route | APIRoute)
            path = re.sub(r"\{[^}]*\}", "0", prefix + route.path)
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


def closed_routes(server: Server) -> list[tuple[str, str]]:
    """Routes of the API that need a key. Pages of the portal need a session; see
    portal/test_sign_in.py."""
    found = [(method, path) for method, path in routes(server) if path not in OPEN]
    return [(m, path) for m, path in found if path != "/" and not path.startswith("/portal")]


def test_the_table_of_routes_is_the_whole_api(server: Server) -> None:
    paths = {path for _, path in routes(server)}
    assert paths >= OPEN
    for path in (
        "/v1/files",
        "/v1/files/0/content",
        "/v1/uploads",
        "/v1/uploads/0",
        "/v1/uploads/0/parts",
        "/v1/uploads/0/complete",
        "/v1/uploads/0/cancel",
        "/v1/fine_tuning/jobs",
        "/v1/fine_tuning/jobs/0/cancel",
        "/v1/fine_tuning/jobs/0/events",
        "/v1/fine_tuning/jobs/0/metrics",
        "/v1/fine_tuning/jobs/0/checkpoints",
        "/v1/models",
        "/v1/models/0",
        "/v1/adapters/0",
        "/v1/adapters/0/content",
        "/internal/jobs/claim",
        "/internal/jobs/0/report",
    ):
        assert path in paths, path


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic dXNlcjpwYXNz",
        "Bearer " + "x" * 5000,
    ],
)
def test_no_route_opens_without_a_key(server: Server, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    checked = closed_routes(server)
    assert len(checked) > 20
    for method, path in checked:
        reply = server.anonymous.send(method, path, headers=headers)
        assert reply.status_code == 401, (method, path)
        error = reply.json()["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
        assert error["hint"]


def test_an_api_key_does_not_open_internal_and_the_worker_token_opens_nothing_else(
    server: Server,
) -> None:
    for method, path in closed_routes(server):
        wrong = server.user if path.startswith("/internal") else server.worker
        assert wrong.send(method, path).status_code == 401, (method, path)


def test_a_key_is_never_repeated_in_an_error(server: Server) -> None:
    key = KEY_PREFIX + "abcdefghijklmnopqrstuvwxyz"
    reply = Caller(server.client, key).get("/v1/files")
    assert reply.status_code == 401
    assert key not in reply.text


def test_a_revoked_key_opens_nothing(server: Server) -> None:
    key = new_key(server.database, "bob")
    bob = Caller(server.client, key)
    assert bob.get("/v1/files").status_code == 200
    with server.database.write.begin() as session:
        [row] = [row for row in keys.list_all(session) if row.name == "bob"]
        keys.revoke(session, row.id)
    reply = bob.get("/v1/files")
    assert reply.status_code == 401
    assert "has been revoked" in reply.json()["error"]["message"]
    assert server.user.get("/v1/files").status_code == 200


def test_an_empty_worker_token_opens_nothing(server: Server) -> None:
    token = type(server.settings.worker_token)
    server.settings.worker_token = token("")
    for caller in (server.anonymous, Caller(server.client, "")):
        assert caller.post("/internal/jobs/claim", json={"worker_id": "w"}).status_code == 401
