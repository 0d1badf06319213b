"""Permissions of other projects to use a tuned model, in the format of OpenAI's checkpoint
permissions. The other projects can list and download a shared model, chat with it, and train it
further."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    CheckpointPermission,
    CheckpointPermissionCreate,
    Deleted,
    ErrorCode,
    Page,
)
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, Forbidden, NotFound
from tunesmith_server.models import AdapterRow, ModelPermissionRow, ProjectRow
from tunesmith_server.models.scope import project_of
from tunesmith_server.services.paging import Order

from .pages import page_of


def share(
    session: Session, model: str, body: CheckpointPermissionCreate
) -> Page[CheckpointPermission]:
    """Let projects use a tuned model of the caller's project. Repeating the request is safe."""
    _own_model(session, model)
    shared = []
    for project_id in dict.fromkeys(body.project_ids):
        project = session.get(ProjectRow, project_id)
        if project is None or project.archived_at is not None:
            raise BadRequest(
                ErrorCode.NOT_FOUND,
                f"project_ids: no project {project_id!r}",
                param="project_ids",
                hint="ask an admin for the project's id",
            )
        row = session.scalar(
            select(ModelPermissionRow).where(
                ModelPermissionRow.model == model, ModelPermissionRow.project_id == project_id
            )
        )
        if row is None:
            row = ModelPermissionRow(
                id=new_id("cp"), created_at=time.time(), model=model, project_id=project_id
            )
            session.add(row)
        shared.append(row)
    session.flush()
    return Page(data=[_to_wire(row) for row in shared])


def list_permissions(
    session: Session,
    model: str,
    *,
    after: str | None,
    limit: int,
    order: Order,
    project_id: str | None,
) -> Page[CheckpointPermission]:
    _own_model(session, model)
    query = select(ModelPermissionRow).where(ModelPermissionRow.model == model)
    if project_id is not None:
        query = query.where(ModelPermissionRow.project_id == project_id)
    return page_of(
        session,
        query,
        (ModelPermissionRow.created_at.expression, ModelPermissionRow.id.expression),
        _to_wire,
        after=after,
        limit=limit,
        what="permission",
        order=order,
    )


def withdraw(session: Session, model: str, permission_id: str) -> Deleted:
    """Withdraw a permission immediately. Jobs that started from the model continue."""
    _own_model(session, model)
    row = session.get(ModelPermissionRow, permission_id)
    if row is None or row.model != model:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"model {model!r} has no permission {permission_id!r}",
            hint="GET /v1/fine_tuning/checkpoints/MODEL/permissions lists them",
        )
    session.delete(row)
    return Deleted(id=permission_id, object="checkpoint.permission")


def _own_model(session: Session, model: str) -> AdapterRow:
    row = session.scalar(select(AdapterRow).where(AdapterRow.model == model))
    if row is None:
        raise NotFound(
            ErrorCode.MODEL_NOT_FOUND,
            f"no tuned model {model!r}",
            hint="GET /v1/models lists tuned models",
        )
    if row.project_id != project_of(session):
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"model {model!r} belongs to another project, which shares it with yours",
            hint="only the project that trained the model can share it",
        )
    return row


def _to_wire(row: ModelPermissionRow) -> CheckpointPermission:
    return CheckpointPermission(
        id=row.id, created_at=int(row.created_at), project_id=row.project_id
    )
