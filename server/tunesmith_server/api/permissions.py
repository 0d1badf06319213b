"""Routes under /v1/fine_tuning/checkpoints: projects that may use a tuned model."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from tunesmith_schema import (
    CheckpointPermission,
    CheckpointPermissionCreate,
    Deleted,
    Page,
)
from tunesmith_server.identity import sharing

from .bounds import AfterQuery, IdPath, ModelPath
from .deps import KeyRoute, ReaderDep, SessionDep

router = APIRouter(
    prefix="/fine_tuning/checkpoints/{model}/permissions",
    tags=["fine-tuning"],
    route_class=KeyRoute,
)


@router.get("")
def list_permissions(
    session: ReaderDep,
    model: ModelPath,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
    order: Literal["ascending", "descending"] = "descending",
    project_id: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[CheckpointPermission]:
    """List the projects that may use a tuned model or checkpoint."""
    return sharing.list_permissions(
        session,
        model,
        after=after,
        limit=limit,
        order="asc" if order == "ascending" else "desc",
        project_id=project_id,
    )


@router.post("")
def create(
    session: SessionDep, model: ModelPath, body: CheckpointPermissionCreate
) -> Page[CheckpointPermission]:
    """Let other projects use a tuned model or checkpoint."""
    return sharing.share(session, model, body)


@router.delete("/{permission_id}")
def delete(session: SessionDep, model: ModelPath, permission_id: IdPath) -> Deleted:
    """Withdraw the permission of a project to use a model."""
    return sharing.withdraw(session, model, permission_id)
