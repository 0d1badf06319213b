"""Entries of the audit log, in the format of `GET /v1/organization/audit_logs`."""

from __future__ import annotations

from typing import Any, Literal

from .base import Response


class AuditLogEntry(Response):
    """An action of a user. `sha256` is computed from the fields from `seq` to `previous`."""

    id: str
    """Id of the entry: `audit-` and the number of the entry."""
    object: Literal["organization.audit_log"] = "organization.audit_log"
    seq: int
    """Number of the entry, from 1 and without gaps."""
    at: float
    """Time of the action, Unix seconds."""
    key_id: str | None
    """API key of the caller; None for a command on the server's host."""
    user_id: str | None
    """User who owns the key; None for the key of a service."""
    project_id: str | None
    """Project of the request."""
    action: str
    """Method and path of the route, such as `DELETE /files/{file_id}`, or a command."""
    target: dict[str, Any]
    """Ids in the request's path; the keys are names of path parameters."""
    address: str | None
    """IP address of the client."""
    request_id: str | None
    """Id of the request, from its header `X-Request-ID`."""
    before: list[dict[str, Any]]
    """Changed and deleted database rows: their ids, and the values before the change."""
    after: list[dict[str, Any]]
    """New and changed database rows: their ids, and the values after the change."""
    previous: str
    """sha256 of the previous entry."""
    sha256: str
    """sha256 of the entry."""
