"""Members of projects and their roles."""

from __future__ import annotations

import time
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    Deleted,
    ErrorCode,
    Page,
    ProjectRole,
    ProjectUser,
    ProjectUserCreate,
    ProjectUserUpdate,
)
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.core.principal import Principal
from tunesmith_server.models import ProjectMemberRow, UserRow

from . import derived_keys, projects, users
from .pages import page_of


def add(
    session: Session, principal: Principal, project_id: str, body: ProjectUserCreate
) -> ProjectUser:
    """Add a user to a project, or change the role of a member."""
    projects.retrieve(session, project_id)
    derived_keys.check_role(principal, body.role)
    user = _named(session, body)
    row = session.get(ProjectMemberRow, (project_id, user.id))
    if row is None:
        row = ProjectMemberRow(project_id=project_id, user_id=user.id, added_at=time.time())
        session.add(row)
    row.role = body.role
    session.flush()
    return _to_wire(session, row)


def _named(session: Session, body: ProjectUserCreate) -> UserRow:
    if (body.user_id is None) == (body.email is None):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            "user_id: send either user_id or email",
            param="user_id",
            hint="an admin adds people with POST /v1/organization/users",
        )
    if body.user_id is not None:
        user = session.get(UserRow, body.user_id)
    else:
        user = users.by_email(session, body.email or "")
    if user is None:
        raise BadRequest(
            ErrorCode.NOT_FOUND,
            f"no user {body.user_id or body.email!r}",
            param="user_id" if body.user_id else "email",
            hint="an admin adds people with POST /v1/organization/users",
        )
    return user


def list_members(
    session: Session, project_id: str, *, after: str | None, limit: int
) -> Page[ProjectUser]:
    projects.retrieve(session, project_id)
    return page_of(
        session,
        select(ProjectMemberRow).where(ProjectMemberRow.project_id == project_id),
        (ProjectMemberRow.added_at.expression, ProjectMemberRow.user_id.expression),
        lambda row: _to_wire(session, row),
        after=after,
        limit=limit,
        what="user",
    )


def retrieve(session: Session, project_id: str, user_id: str) -> ProjectUser:
    return _to_wire(session, _row(session, project_id, user_id))


def change(
    session: Session,
    principal: Principal,
    project_id: str,
    user_id: str,
    body: ProjectUserUpdate,
) -> ProjectUser:
    row = _row(session, project_id, user_id)
    derived_keys.check_role(principal, body.role)
    row.role = body.role
    return _to_wire(session, row)


def remove(session: Session, project_id: str, user_id: str) -> Deleted:
    """Remove a member and revoke the member's keys of this project."""
    session.delete(_row(session, project_id, user_id))
    users.revoke_keys(session, user_id, project_id)
    return Deleted(id=user_id, object="organization.project.user.deleted")


def is_member(session: Session, project_id: str, user_id: str) -> bool:
    return session.get(ProjectMemberRow, (project_id, user_id)) is not None


def _row(session: Session, project_id: str, user_id: str) -> ProjectMemberRow:
    row = session.get(ProjectMemberRow, (project_id, user_id))
    if row is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no user {user_id!r} in project {project_id!r}",
            hint="GET /v1/organization/projects/ID/users lists the members",
        )
    return row


def _to_wire(session: Session, row: ProjectMemberRow) -> ProjectUser:
    user = session.get_one(UserRow, row.user_id)
    return ProjectUser(
        id=user.id,
        name=user.name,
        email=user.email,
        role=cast(ProjectRole, row.role),
        added_at=int(row.added_at),
    )
