"""API keys of projects, and admin keys, in the format of the API."""

from __future__ import annotations

from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    AdminApiKey,
    AdminApiKeyCreate,
    AdminApiKeyCreated,
    AdminKeyOwner,
    Deleted,
    ErrorCode,
    KeyOwner,
    KeyService,
    KeyUser,
    Page,
    ProjectApiKey,
    ProjectApiKeyCreate,
    ProjectApiKeyCreated,
    Role,
    Verb,
)
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.core.principal import Principal, allowed_verbs
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import ApiKeyRow, UserRow
from tunesmith_server.services import keys

from . import derived_keys, members, projects
from .pages import page_of


def create(
    session: Session,
    settings: Settings,
    principal: Principal,
    project_id: str,
    body: ProjectApiKeyCreate,
) -> ProjectApiKeyCreated:
    """Create a key of a project, within the bounds of the caller's key."""
    project = projects.retrieve(session, project_id)
    if project.archived_at is not None:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"project {project_id!r} is archived",
            hint="create the key in an active project",
        )
    derived_keys.check_verbs(principal, allowed_verbs(body.role, body.verbs), "a key")
    if body.user_id is not None and not members.is_member(session, project_id, body.user_id):
        raise BadRequest(
            ErrorCode.NOT_FOUND,
            f"no user {body.user_id!r} in project {project_id!r}",
            param="user_id",
            hint="GET /v1/organization/projects/ID/users lists the members",
        )
    maker = session.get_one(ApiKeyRow, principal.key_id)
    row, value = keys.create(
        session,
        body.name,
        role=body.role,
        project_id=project_id,
        user_id=body.user_id,
        verbs=body.verbs,
        expires_at=derived_keys.end(maker, body.expires_in_seconds),
        requests_per_minute=derived_keys.requests_per_minute(
            principal, maker, body.requests_per_minute, settings.requests_per_minute
        ),
    )
    derived_keys.inherit_limits(maker, row)
    shown = _to_wire(session, row).model_dump()
    return ProjectApiKeyCreated(**shown, value=value)


def list_keys(
    session: Session, project_id: str, *, after: str | None, limit: int
) -> Page[ProjectApiKey]:
    """Return the project's keys that are not revoked; admin keys have a separate list."""
    projects.retrieve(session, project_id)
    return page_of(
        session,
        select(ApiKeyRow).where(
            ApiKeyRow.project_id == project_id,
            ApiKeyRow.role != "admin",
            ApiKeyRow.revoked_at.is_(None),
        ),
        (ApiKeyRow.created_at.expression, ApiKeyRow.id.expression),
        lambda row: _to_wire(session, row),
        after=after,
        limit=limit,
        what="key",
    )


def retrieve(session: Session, project_id: str, key_id: str) -> ProjectApiKey:
    return _to_wire(session, _row(session, project_id, key_id))


def delete(session: Session, project_id: str, key_id: str) -> Deleted:
    """Revoke a key immediately; its event streams end within seconds."""
    keys.revoke(session, _row(session, project_id, key_id).id)
    return Deleted(id=key_id, object="organization.project.api_key.deleted")


def _row(session: Session, project_id: str, key_id: str) -> ApiKeyRow:
    row = session.get(ApiKeyRow, key_id)
    if (
        row is None
        or row.project_id != project_id
        or row.role == "admin"
        or row.revoked_at is not None
    ):
        raise _no_key(key_id, f"GET /v1/organization/projects/{project_id}/api_keys")
    return row


def _no_key(key_id: str, listing: str) -> NotFound:
    return NotFound(ErrorCode.NOT_FOUND, f"no key {key_id!r}", hint=f"{listing} lists the keys")


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)


def _to_wire(session: Session, row: ApiKeyRow) -> ProjectApiKey:
    user = session.get(UserRow, row.user_id) if row.user_id else None
    owner = KeyOwner(
        type="service_account",
        service_account=KeyService(
            id=row.id, name=row.name, role=row.role, created_at=int(row.created_at)
        ),
    )
    if user is not None:
        owner = KeyOwner(
            type="user",
            user=KeyUser(
                id=user.id,
                name=user.name,
                email=user.email,
                role=row.role,
                created_at=int(user.created_at),
            ),
        )
    return ProjectApiKey(
        id=row.id,
        name=row.name,
        redacted_value=f"{row.prefix}...",
        created_at=int(row.created_at),
        last_used_at=_seconds(row.last_used_at),
        expires_at=_seconds(row.expires_at),
        owner=owner,
        role=cast(Role, row.role),
        verbs=cast(list[Verb] | None, row.verbs),
        requests_per_minute=row.requests_per_minute,
    )


def create_admin(
    session: Session, principal: Principal, body: AdminApiKeyCreate
) -> AdminApiKeyCreated:
    """Create an admin key, within the bounds of the caller's key."""
    derived_keys.check_verbs(principal, allowed_verbs("admin", None), "a key")
    maker = session.get_one(ApiKeyRow, principal.key_id)
    row, value = keys.create(
        session,
        body.name,
        role="admin",
        expires_at=derived_keys.end(maker, body.expires_in_seconds),
        requests_per_minute=maker.requests_per_minute,
    )
    derived_keys.inherit_limits(maker, row)
    return AdminApiKeyCreated(**_admin_to_wire(row).model_dump(), value=value)


def list_admin(session: Session, *, after: str | None, limit: int) -> Page[AdminApiKey]:
    return page_of(
        session,
        select(ApiKeyRow).where(ApiKeyRow.role == "admin", ApiKeyRow.revoked_at.is_(None)),
        (ApiKeyRow.created_at.expression, ApiKeyRow.id.expression),
        _admin_to_wire,
        after=after,
        limit=limit,
        what="key",
    )


def retrieve_admin(session: Session, key_id: str) -> AdminApiKey:
    return _admin_to_wire(_admin_row(session, key_id))


def delete_admin(session: Session, principal: Principal, key_id: str) -> Deleted:
    """Revoke an admin key immediately.

    A key cannot revoke itself, so that one admin key remains.
    """
    row = _admin_row(session, key_id)
    if row.id == principal.key_id:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"key {key_id!r} cannot revoke itself",
            hint="use another admin key, or `tunesmith keys revoke ID` on the server's host",
        )
    keys.revoke(session, row.id)
    return Deleted(id=key_id, object="organization.admin_api_key.deleted")


def _admin_row(session: Session, key_id: str) -> ApiKeyRow:
    row = session.get(ApiKeyRow, key_id)
    if row is None or row.role != "admin" or row.revoked_at is not None:
        raise _no_key(key_id, "GET /v1/organization/admin_api_keys")
    return row


def _admin_to_wire(row: ApiKeyRow) -> AdminApiKey:
    return AdminApiKey(
        id=row.id,
        name=row.name,
        redacted_value=f"{row.prefix}...",
        created_at=int(row.created_at),
        expires_at=_seconds(row.expires_at),
        last_used_at=_seconds(row.last_used_at),
        owner=AdminKeyOwner(
            id=row.user_id or row.id, name=row.name, created_at=int(row.created_at)
        ),
    )
