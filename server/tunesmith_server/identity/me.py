"""The caller of a request, in the format of GET /v1/me."""

from __future__ import annotations

from typing import get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import Me, MyProject, Verb
from tunesmith_server.core.principal import Principal
from tunesmith_server.models import ApiKeyRow, ProjectRow, UserRow

_MAX_PROJECTS = 1000


def describe(session: Session, principal: Principal) -> Me:
    key = session.get_one(ApiKeyRow, principal.key_id)
    user = session.get(UserRow, principal.user_id) if principal.user_id else None
    project = session.get_one(ProjectRow, principal.project_id)
    opened = [project]
    if principal.is_admin:
        query = select(ProjectRow).where(ProjectRow.archived_at.is_(None))
        ordered = query.order_by(ProjectRow.created_at, ProjectRow.id)
        opened = list(session.scalars(ordered.limit(_MAX_PROJECTS)))
    return Me(
        id=user.id if user else key.id,
        name=user.name if user else key.name,
        email=user.email if user else None,
        key_id=key.id,
        role=principal.role,
        verbs=[verb for verb in get_args(Verb) if verb in principal.verbs],
        expires_at=None if key.expires_at is None else int(key.expires_at),
        project=_mine(principal, project),
        projects=[_mine(principal, row) for row in opened],
    )


def _mine(principal: Principal, row: ProjectRow) -> MyProject:
    return MyProject(id=row.id, name=row.name, role=principal.role)
