"""Routes under /v1/queue: running and waiting jobs, and the shares of projects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query

from tunesmith_schema import KeyLimits, Limits, Page, ProjectShare, Queue, ShareChange
from tunesmith_server.core.principal import Principal
from tunesmith_server.scheduling import overview, shares

from .bounds import IdPath
from .deps import KeyRoute, PrincipalDep, ReaderDep, SessionDep, StateDep

router = APIRouter(prefix="/queue", tags=["queue"], route_class=KeyRoute)


def visible_to(principal: Principal) -> Callable[[str], bool]:
    """Return a function that returns True if the caller may see the jobs of a project."""
    return lambda project_id: principal.is_admin or project_id == principal.project_id


@router.get("")
def queue(
    principal: PrincipalDep, state: StateDep, limit: Annotated[int, Query(ge=0, le=1000)] = 100
) -> Queue:
    """Show the running jobs, and the waiting jobs in the order of their expected start. Jobs of
    other projects are shown without their id."""
    return overview.queue(state.queue_view.get(), visible_to(principal), limit)


@router.get("/projects")
def list_shares(principal: PrincipalDep, session: ReaderDep) -> Page[ProjectShare]:
    """Show weight, guaranteed devices, limits and usage of your project; an admin gets all
    projects. Older usage counts less."""
    only = None if principal.is_admin else principal.project_id
    return Page(data=shares.list_shares(session, only))


@router.post("/projects/{project_id}")
def change_share(session: SessionDep, project_id: IdPath, body: ShareChange) -> ProjectShare:
    """Change the share or the limits of a project."""
    return shares.change_share(session, project_id, body)


@router.post("/keys/{key_id}")
def change_key(
    principal: PrincipalDep, session: SessionDep, key_id: IdPath, body: Limits
) -> KeyLimits:
    """Change the job limits of a key of your project. The new limits cannot be higher than the
    limits of your key."""
    return shares.change_key(session, principal, key_id, body)
