"""Projects: create, change, archive. Projects are never deleted, because other database rows refer
to them."""

from __future__ import annotations

import re
import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Page, Project, ProjectCreate, ProjectUpdate
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.principal import Principal
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import DEFAULT_PROJECT, ProjectRow

from .pages import page_of
from .policy import no_project


def create(session: Session, settings: Settings, body: ProjectCreate) -> Project:
    row = ProjectRow(
        id=new_id("proj"),
        name=body.name,
        slug=slug_of(body.name),
        created_at=time.time(),
        max_bytes=body.max_bytes,
        base_models=body.base_models,
    )
    session.add(row)
    session.flush()
    return to_wire(settings, row)


def slug_of(name: str) -> str:
    """Return the text that stands for the project in model names. A project keeps this text, so its
    models keep their names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32].strip("-") or "project"


def retrieve(session: Session, project_id: str) -> ProjectRow:
    row = session.get(ProjectRow, project_id)
    if row is None:
        raise no_project(project_id)
    return row


def list_projects(
    session: Session,
    settings: Settings,
    principal: Principal,
    *,
    after: str | None,
    limit: int,
    include_archived: bool,
) -> Page[Project]:
    """Return all projects for an admin, and the caller's own project for any other caller."""
    query = select(ProjectRow)
    if not principal.is_admin:
        query = query.where(ProjectRow.id == principal.project_id)
    if not include_archived:
        query = query.where(ProjectRow.archived_at.is_(None))
    return page_of(
        session,
        query,
        (ProjectRow.created_at.expression, ProjectRow.id.expression),
        lambda row: to_wire(settings, row),
        after=after,
        limit=limit,
        what="project",
    )


def update(session: Session, settings: Settings, project_id: str, body: ProjectUpdate) -> Project:
    row = retrieve(session, project_id)
    if body.name is not None:
        row.name = body.name
    if "max_bytes" in body.model_fields_set:
        row.max_bytes = body.max_bytes
    if "base_models" in body.model_fields_set:
        row.base_models = body.base_models
    return to_wire(settings, row)


def archive(session: Session, settings: Settings, project_id: str) -> Project:
    """Archive a project: its keys stop working immediately.

    The project's running jobs end as usual; no worker claims its queued jobs.
    """
    row = retrieve(session, project_id)
    if project_id == DEFAULT_PROJECT:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            "the default project cannot be archived",
            hint="admin keys and earlier releases use it",
        )
    row.archived_at = row.archived_at or time.time()
    return to_wire(settings, row)


def to_wire(settings: Settings, row: ProjectRow) -> Project:
    return Project(
        id=row.id,
        name=row.name,
        created_at=int(row.created_at),
        archived_at=int(row.archived_at) if row.archived_at else None,
        status="archived" if row.archived_at else "active",
        slug=row.slug or settings.project,
        max_bytes=row.max_bytes,
        base_models=row.base_models,
    )
