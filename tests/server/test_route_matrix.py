"""Every route of the OpenAPI document: role, and whose thing the path names. A new route fails here
until it has a rule in identity/policy.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from httpx2 import Response

from tunesmith_schema import Role
from tunesmith_server.core.principal import VERBS
from tunesmith_server.identity.policy import RULES
from tunesmith_server.models import DEFAULT_PROJECT
from tunesmith_server.services import keys, sessions

from .actors import ROWS, Server
from .callers import Caller
from .teams import Team, caller, new_project, team, two_teams

ROLES: list[Role] = ["viewer", "member", "lead", "admin"]
SHAREABLE = {"model", "adapter_id"}
ORGANIZATION_WIDE = (
    *("/organization/users", "/organization/admin_api_keys", "/workers/", "/reservations/"),
)
"""Things that belong to no project."""
OWN_MAY_LACK = {"no_report", "no_evaluation", "no_stats"}
BODIES: dict[str, dict[str, Any]] = {
    "GET /files/{file_id}/overlap": {"params": {"with": "{file_id}"}},
    "POST /files": {"files": {"file": ("a.jsonl", ROWS)}, "data": {"purpose": "fine-tune"}},
    "POST /uploads": {
        "json": {"bytes": 9, "filename": "a", "mime_type": "x", "purpose": "fine-tune"}
    },
    "POST /uploads/{upload_id}/parts": {"files": {"data": b"123"}},
    "POST /uploads/{upload_id}/complete": {"json": {"part_ids": ["part-1"]}},
    "POST /fine_tuning/jobs": {"json": {"model": "tiny-llama", "training_file": "{file_id}"}},
    "PATCH /fine_tuning/jobs/{job_id}": {"json": {"name": "n", "pinned": True}},
    "POST /fine_tuning/checkpoints/{model}/permissions": {
        "json": {"project_ids": ["{project_id}"]}
    },
    "POST /chat/completions": {
        "json": {"model": "{model}", "messages": [{"role": "user", "content": "hi"}]}
    },
    "POST /evaluations": {"json": {"model": "{model}", "file": "{file_id}"}},
    "POST /completions": {"json": {"model": "{model}", "prompt": "hi"}},
    "POST /queue/projects/{project_id}": {"json": {"weight": 2.0}},
    "POST /queue/keys/{key_id}": {"json": {"max_running_jobs": 9}},
    "POST /workers/{worker}/drain": {"json": {"reason": "new disk"}},
    "POST /reservations": {"json": {"worker": "{worker}", "starts_at": 4_000_000_000}},
    "POST /sessions": {"json": {"name": "wall"}},
    "POST /organization/projects": {"json": {"name": "new"}},
    "POST /organization/projects/{project_id}": {"json": {}},
    "POST /organization/projects/{project_id}/users": {"json": {"user_id": "{user_id}"}},
    "POST /organization/projects/{project_id}/users/{user_id}": {"json": {"role": "viewer"}},
    "POST /organization/projects/{project_id}/api_keys": {"json": {"name": "k", "role": "viewer"}},
    "POST /organization/users": {"json": {"email": "new@example.org", "name": "N"}},
    "POST /organization/users/{user_id}": {"json": {"name": "N"}},
    "POST /organization/admin_api_keys": {"json": {"name": "k"}},
}
"""Body of each POST that needs one, and query of a GET."""


def routes(server: Server) -> list[str]:
    """`METHOD /path` of every operation below /v1; those that delete come last."""
    document = server.app.openapi()
    found = [
        f"{method.upper()} {path.removeprefix('/v1')}"
        for path, operations in document["paths"].items()
        for method in operations
        if path.startswith("/v1/")
    ]
    return sorted(
        found, key=lambda route: ("GET", "POST", "PATCH", "DELETE").index(route.split()[0])
    )


def rule_of(route: str) -> str:
    """Name of the route in the policy, which keeps the path's converters."""
    return route.replace("/models/{model}", "/models/{model:path}")


def parameters(route: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", route)


def filled(document: Any, owner: Team) -> Any:  # Any: JSON
    """Replace each `{parameter}` in the texts of a document."""
    if isinstance(document, str):
        return re.sub(r"\{(\w+)\}", lambda match: owner.value(match[1]), document)
    if isinstance(document, list):
        return [filled(item, owner) for item in document]
    if isinstance(document, dict):
        return {key: filled(value, owner) for key, value in document.items()}
    return document


def send(sender: Caller, route: str, target: Team, own: Team) -> Response:
    method, path = route.split()
    for parameter in parameters(route):
        path = path.replace(f"{{{parameter}}}", target.value(parameter))
    return sender.send(method, f"/v1{path}", **filled(BODIES.get(route, {}), own))


def test_every_route_has_a_rule_and_every_rule_a_route(server: Server) -> None:
    assert {rule_of(route) for route in routes(server)} == RULES.keys()


def cases(server: Server) -> Iterator[tuple[str, str]]:
    """(route, whose), where whose is `own`, `other` or `shared`."""
    for route in routes(server):
        named = set(parameters(route))
        yield route, "own"
        if named and not route.split()[1].startswith(ORGANIZATION_WIDE):
            yield route, "other"
        if named & SHAREABLE:
            yield route, "shared"


@pytest.mark.parametrize("role", ROLES)
def test_each_route_answers_by_role_and_project(server: Server, role: Role) -> None:
    admin, own, other = two_teams(server)
    sender = caller(server, role)
    spare = admin.post("/v1/organization/admin_api_keys", json={"name": "spare"}).json()["id"]
    all_cases = list(cases(server))
    assert len(all_cases) > 90
    shared = team(server, admin, new_project(admin, "sharing"), DEFAULT_PROJECT)
    for route, whose in sorted(all_cases, key=_deletes):
        target = {"own": own, "other": other, "shared": shared}[whose]
        if whose != "other" and route.endswith("/tokenizer"):
            continue  # this host has no folder of the base model
        if "/admin_api_keys/" in route:
            target = replace(own, key_id=spare)
        if "/sessions/" in route and whose == "own":  # each key ends only its own sessions
            target = replace(own, session_id=session_of(server, sender))
        reply = send(sender, route, target, own)
        got = (reply.status_code, _code(reply))
        detail = (role, route, whose, got, reply.text[:300])
        allowed = RULES[rule_of(route)] in VERBS[role]
        if not allowed:
            assert got == (403, "permission_denied"), detail
        elif whose == "own":
            assert got[0] < 400 or got[0] in (400, 409, 503) or got[1] in OWN_MAY_LACK, detail
        elif (
            whose == "other" and role == "admin" and ("/organization/" in route or "queue" in route)
        ):
            assert got[0] in (200, 400), detail
        elif whose == "other":
            assert got[0] == 404, detail
        elif route.startswith("GET") and "permissions" not in route:
            assert got[0] == 200, detail
        else:
            assert got == (403, "permission_denied"), detail


def session_of(server: Server, sender: Caller) -> str:
    """Sign in with the sender's key; return the session's id."""
    with server.database.write.begin() as session:
        key_id = keys.authenticate(session, sender.headers["authorization"]).key_id
        return sessions.create(session, key_id)[0].id


def _deletes(case: tuple[str, str]) -> tuple[bool, bool, int, str]:
    """Order in which nothing is deleted before it is used: a job's model goes with the job, and a
    member's key with the member."""
    deletes = case[0].startswith("DELETE")
    depth = -case[0].count("/") if deletes else 0
    return deletes, deletes and "/jobs/" in case[0], depth, case[0]


def _code(reply: Response) -> str | None:
    if reply.status_code < 400:
        return None
    code: str | None = reply.json()["error"]["code"]
    return code
