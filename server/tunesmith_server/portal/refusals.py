"""Refusals of actions, in words for people who do not use the API."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tunesmith_schema import ErrorCode, Verb
from tunesmith_server.core.errors import Forbidden
from tunesmith_server.core.principal import VERBS, Principal
from tunesmith_server.identity import policy

_JOB = "/fine_tuning/jobs/{job_id}"
_PERMISSIONS = "/fine_tuning/checkpoints/{model}/permissions"
_KEY = "/organization/projects/{project_id}/api_keys/{key_id}"

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "POST /fine_tuning/jobs": "start jobs",
        f"PATCH {_JOB}": "edit jobs",
        **{
            f"POST {_JOB}/{verb}": f"{verb} jobs"
            for verb in ("cancel", "pause", "resume", "stop", "fork", "retry")
        },
        f"POST {_JOB}/links": "share jobs",
        f"DELETE {_JOB}/links/{{link_id}}": "stop the sharing of jobs",
        "POST /files": "upload files",
        "DELETE /files/{file_id}": "delete files",
        "DELETE /models/{model:path}": "delete models",
        f"POST {_PERMISSIONS}": "share models with other projects",
        f"DELETE {_PERMISSIONS}/{{permission_id}}": "stop the sharing of models",
        "POST /chat/completions": "chat with models",
        "POST /sessions": "make links for displays",
        f"DELETE {_KEY}": "revoke API keys",
    }
)
"""Action of each route that needs more than the right to read."""
_READ = "see the jobs, files and models of this project"
_REMEDIES: Mapping[Verb, str] = MappingProxyType(
    {
        "manage": "ask a lead of the project to do this",
        "administer": "ask an admin to do this",
    }
)
_OTHER_REMEDY = "ask a lead of the project for an API key with the role member"


def require(principal: Principal, route: str) -> None:
    """Raise Forbidden if the caller may not use this route of the API. The message names the
    action, the caller's role and the people who can help."""
    verb = policy.RULES[route]
    if verb in principal.verbs:
        return
    action = ACTIONS.get(route, _READ)
    if verb in VERBS[principal.role]:
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"your role is {principal.role}, but the API key of this session may not {action}",
            hint="sign in with another API key, or ask a lead of the project for one",
        )
    raise Forbidden(
        ErrorCode.PERMISSION_DENIED,
        f"with the role {principal.role}, you may not {action}",
        hint=_REMEDIES.get(verb, _OTHER_REMEDY),
    )
