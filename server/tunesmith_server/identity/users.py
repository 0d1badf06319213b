"""Users of the organization."""

from __future__ import annotations

import time

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunesmith_schema import Deleted, ErrorCode, OrganizationUser, Page, UserCreate, UserUpdate
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import Conflict, NotFound
from tunesmith_server.models import ApiKeyRow, ProjectMemberRow, UserRow

from .pages import page_of


def create(session: Session, body: UserCreate) -> OrganizationUser:
    if by_email(session, body.email) is not None:
        raise Conflict(
            ErrorCode.EXISTS_ALREADY,
            f"a user with the e-mail address {body.email!r} exists already",
            param="email",
            hint="GET /v1/organization/users lists all users",
        )
    row = UserRow(
        id=new_id("user"),
        email=body.email,
        name=body.name,
        role=body.role,
        created_at=time.time(),
    )
    session.add(row)
    session.flush()
    return to_wire(row)


def by_email(session: Session, email: str) -> UserRow | None:
    """Return the user with this e-mail address, ignoring upper and lower case."""
    return session.scalar(select(UserRow).where(func.lower(UserRow.email) == email.lower()))


def retrieve(session: Session, user_id: str) -> UserRow:
    row = session.get(UserRow, user_id)
    if row is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no user {user_id!r}",
            hint="GET /v1/organization/users lists all users",
        )
    return row


def list_users(
    session: Session, *, after: str | None, limit: int, emails: list[str]
) -> Page[OrganizationUser]:
    query = select(UserRow)
    if emails:
        query = query.where(func.lower(UserRow.email).in_([email.lower() for email in emails]))
    return page_of(
        session,
        query,
        (UserRow.created_at.expression, UserRow.id.expression),
        to_wire,
        after=after,
        limit=limit,
        what="user",
    )


def update_user(session: Session, user_id: str, body: UserUpdate) -> OrganizationUser:
    row = retrieve(session, user_id)
    row.name = body.name or row.name
    row.role = body.role or row.role
    return to_wire(row)


def delete_user(session: Session, user_id: str) -> Deleted:
    """Delete a user and the user's memberships, and revoke the user's keys."""
    row = retrieve(session, user_id)
    revoke_keys(session, user_id)
    memberships = select(ProjectMemberRow).where(ProjectMemberRow.user_id == user_id)
    for membership in session.scalars(memberships):
        session.delete(membership)
    session.flush()
    session.delete(row)
    return Deleted(id=user_id, object="organization.user.deleted")


def revoke_keys(session: Session, user_id: str, project_id: str | None = None) -> None:
    """Revoke a user's keys of one project or of all projects."""
    query = select(ApiKeyRow).where(ApiKeyRow.user_id == user_id, ApiKeyRow.revoked_at.is_(None))
    if project_id is not None:
        query = query.where(ApiKeyRow.project_id == project_id)
    for row in session.scalars(query):  # one by one: the audit log then names them
        row.revoked_at = time.time()


def to_wire(row: UserRow) -> OrganizationUser:
    return OrganizationUser(
        id=row.id,
        name=row.name,
        email=row.email,
        role="admin" if row.role == "admin" else "member",
        added_at=int(row.created_at),
    )
