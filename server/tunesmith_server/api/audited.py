"""Rules for the audit log: which requests it records, and what an entry contains."""

from __future__ import annotations

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from tunesmith_server.core.principal import Principal
from tunesmith_server.services.audit import Entry

READS = frozenset(
    {
        "GET /files/{file_id}/content",
        "GET /files/{file_id}/rows",
        "GET /adapters/{adapter_id}/content",
        "GET /adapters/{adapter_id}/content/{name}",
        "GET /organization/projects/{project_id}/api_keys",
        "GET /organization/projects/{project_id}/api_keys/{key_id}",
        "GET /organization/admin_api_keys",
        "GET /organization/admin_api_keys/{key_id}",
    }
)
"""GET routes that the audit log records, because they return data, weights or keys."""
_CREATE_JOB = "POST /fine_tuning/jobs"
_BOOL = TypeAdapter(bool)
_NOT_AUDITED = frozenset({"POST /chat/completions", "POST /completions"})


def is_dry_run(request: Request) -> bool:
    """Return True if a create request is only validated (`validate_only=true`)."""
    try:
        return _BOOL.validate_python(request.query_params.get("validate_only"))
    except ValidationError:
        return False


def entry_of(
    request: Request, principal: Principal, path: str, method: str | None = None
) -> Entry | None:
    """Return the audit log's entry for a request, or None if the log does not record the request.

    `method`: HTTP method to record; None means the request's own. Browsers send all forms of the
              portal by POST; for a form, pass the method of the /v1 route that does the same.
    """
    method = method or request.method
    action = f"{method} {path.removeprefix('/v1')}"
    if action == _CREATE_JOB and is_dry_run(request):
        return None
    if action in _NOT_AUDITED or (method == "GET" and action not in READS):
        return None
    return Entry(
        action=action,
        key_id=principal.key_id,
        user_id=principal.user_id,
        project_id=principal.project_id,
        target={name: str(value)[:512] for name, value in request.path_params.items()},
        address=request.client.host[:64] if request.client else None,
        request_id=getattr(request.state, "request_id", None),
    )
