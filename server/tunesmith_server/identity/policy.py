"""The policy: which verb each route needs. A verb is a right of an API key, such as read or chat.
Requests for routes without a rule are refused.

Roles and keys allow certain verbs (core/principal.py). In addition, a database session sees only
rows of the request's project (models/scope.py). A request for an object of another project
therefore gets 404.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith_schema import ErrorCode, Verb
from tunesmith_server.core.errors import Forbidden, NotFound
from tunesmith_server.core.principal import Principal

_JOB = "/fine_tuning/jobs/{job_id}"
_PERMISSIONS = "/fine_tuning/checkpoints/{model}/permissions"
_PROJECTS = "/organization/projects"
_PROJECT = f"{_PROJECTS}/{{project_id}}"

RULES: dict[str, Verb] = {
    "GET /me": "read",
    "GET /sessions": "read",
    "POST /sessions": "write",
    "DELETE /sessions/{session_id}": "read",
    "GET /files": "read",
    "POST /files": "write",
    "GET /files/{file_id}": "read",
    "DELETE /files/{file_id}": "write",
    "GET /files/{file_id}/content": "read",
    "GET /files/{file_id}/rows": "read",
    "GET /files/{file_id}/uses": "read",
    "GET /files/{file_id}/stats": "read",
    "GET /files/{file_id}/overlap": "read",
    "POST /uploads": "write",
    "GET /uploads/{upload_id}": "read",
    "POST /uploads/{upload_id}/parts": "write",
    "POST /uploads/{upload_id}/complete": "write",
    "POST /uploads/{upload_id}/cancel": "write",
    "GET /fine_tuning/events": "read",
    "GET /fine_tuning/compare": "read",
    "GET /fine_tuning/recipe": "read",
    "GET /fine_tuning/jobs": "read",
    "POST /fine_tuning/jobs": "write",
    f"GET {_JOB}": "read",
    f"PATCH {_JOB}": "write",
    f"DELETE {_JOB}": "write",
    **{
        f"GET {_JOB}/{part}": "read"
        for part in (
            "report",
            "evaluation",
            "events",
            "metrics",
            "checkpoints",
            "samples",
            "self_check",
            "resume_points",
            "lineage",
            "files",
            "files/{file_name}",
        )
    },
    f"GET {_JOB}/samples/steps": "read",
    **{
        f"POST {_JOB}/{verb}": "write"
        for verb in ("cancel", "pause", "resume", "stop", "fork", "retry")
    },
    f"GET {_JOB}/links": "read",
    f"POST {_JOB}/links": "write",
    f"DELETE {_JOB}/links/{{link_id}}": "write",
    f"GET {_PERMISSIONS}": "manage",
    f"POST {_PERMISSIONS}": "manage",
    f"DELETE {_PERMISSIONS}/{{permission_id}}": "manage",
    "GET /queue": "read",
    "GET /queue/projects": "read",
    "POST /queue/projects/{project_id}": "administer",
    "POST /queue/keys/{key_id}": "manage",
    "GET /workers": "read",
    "POST /workers/{worker}/drain": "administer",
    "DELETE /workers/{worker}/drain": "administer",
    "GET /reservations": "read",
    "POST /reservations": "administer",
    "DELETE /reservations/{reservation_id}": "administer",
    "GET /usage": "read",
    "GET /models": "read",
    "GET /models/{model:path}": "read",
    "DELETE /models/{model:path}": "write",
    "GET /models/{model:path}/uses": "read",
    "GET /adapters": "read",
    "GET /adapters/{adapter_id}": "read",
    "GET /adapters/{adapter_id}/verification": "read",
    "GET /adapters/{adapter_id}/content": "read",
    "GET /adapters/{adapter_id}/content/{name}": "read",
    "GET /models/{model:path}/tokenizer": "read",
    "GET /evaluations": "read",
    "POST /evaluations": "write",
    "GET /evaluations/{evaluation_id}": "read",
    "POST /evaluations/{evaluation_id}/cancel": "write",
    "DELETE /evaluations/{evaluation_id}": "write",
    "POST /chat/completions": "chat",
    "POST /completions": "chat",
    f"GET {_PROJECTS}": "manage",
    f"POST {_PROJECTS}": "administer",
    f"GET {_PROJECT}": "manage",
    f"POST {_PROJECT}": "administer",
    f"POST {_PROJECT}/archive": "administer",
    f"GET {_PROJECT}/users": "manage",
    f"POST {_PROJECT}/users": "manage",
    f"GET {_PROJECT}/users/{{user_id}}": "manage",
    f"POST {_PROJECT}/users/{{user_id}}": "manage",
    f"DELETE {_PROJECT}/users/{{user_id}}": "manage",
    f"GET {_PROJECT}/api_keys": "manage",
    f"POST {_PROJECT}/api_keys": "manage",
    f"GET {_PROJECT}/api_keys/{{key_id}}": "manage",
    f"DELETE {_PROJECT}/api_keys/{{key_id}}": "manage",
    "GET /organization/audit_logs": "administer",
    "GET /organization/storage": "administer",
    "GET /organization/users": "administer",
    "POST /organization/users": "administer",
    "GET /organization/users/{user_id}": "administer",
    "POST /organization/users/{user_id}": "administer",
    "DELETE /organization/users/{user_id}": "administer",
    "GET /organization/admin_api_keys": "administer",
    "POST /organization/admin_api_keys": "administer",
    "GET /organization/admin_api_keys/{key_id}": "administer",
    "DELETE /organization/admin_api_keys/{key_id}": "administer",
}
"""Verb of each route; the paths are below /v1."""


def require(principal: Principal, verb: Verb, resource: str) -> None:
    """Raise Forbidden if the caller's key does not have `verb`. `resource`: what needs the verb,
    such as a route; the error message names it."""
    if verb in principal.verbs:
        return
    raise Forbidden(
        ErrorCode.PERMISSION_DENIED,
        f"{resource} needs a key with the verb {verb!r}; this key has the role "
        f"{principal.role!r} with {', '.join(sorted(principal.verbs)) or 'no verb'}",
        hint="ask a lead of the project for a key with this verb; GET /v1/me shows your rights",
    )


def check(principal: Principal, method: str, path: str, values: Mapping[str, str]) -> None:
    """Check that the caller may use a route.

    Raises Forbidden if the caller does not have the route's verb. Raises NotFound if the path names
    another project than the caller's project; an admin may use all projects. `path` is the template
    of the path; `values` are the values of its parameters.
    """
    route = f"{method} {path.removeprefix('/v1')}"
    verb = RULES.get(route)
    if verb is None:
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"the server has no permission rule for {route}",
            hint="report this bug to the operator",
        )
    require(principal, verb, route)
    project_id = values.get("project_id")
    if project_id not in (None, principal.project_id) and not principal.is_admin:
        raise no_project(project_id or "")


def no_project(project_id: str) -> NotFound:
    return NotFound(
        ErrorCode.NOT_FOUND,
        f"no project {project_id!r}",
        hint="GET /v1/me lists the projects that your key gives access to",
    )
