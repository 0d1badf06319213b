"""Shares of the devices: weights, guarantees and limits of projects, and limits of keys."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, JobState, KeyLimits, Limits, ProjectShare, ShareChange
from tunesmith_server.core.errors import Forbidden, NotFound
from tunesmith_server.core.principal import Principal
from tunesmith_server.models import ApiKeyRow, JobRow, ProjectRow
from tunesmith_server.models.scope import all_projects

from . import usage
from .limits import HELD


def list_shares(session: Session, only: str | None) -> list[ProjectShare]:
    """Return the shares of the active projects, ordered by name, or only the share of the project
    with the id `only`."""
    query = select(ProjectRow).order_by(ProjectRow.name)
    query = query.where(ProjectRow.archived_at.is_(None) if only is None else ProjectRow.id == only)
    rows = session.scalars(query).all()
    now = usage.database_now(session)
    counts: dict[tuple[str, bool], int] = {}
    for project_id, state, count in session.execute(
        all_projects(
            select(JobRow.project_id, JobRow.state, func.count())
            .where(JobRow.state.in_((*HELD, JobState.QUEUED)))
            .group_by(JobRow.project_id, JobRow.state)
        )
    ):
        key = (project_id, state == JobState.QUEUED)
        counts[key] = counts.get(key, 0) + count
    return [_to_wire(row, counts, now) for row in rows]


def change_share(session: Session, project_id: str, body: ShareChange) -> ProjectShare:
    """Change the fields of a project's share that the request names. Later claims use the new
    values."""
    if session.get(ProjectRow, project_id) is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no project {project_id!r}",
            hint="GET /v1/queue/projects lists all projects",
        )
    project = usage.lock_project(session, project_id)
    for name in body.model_fields_set:
        setattr(project, name, getattr(body, name))
    session.flush()
    [share] = list_shares(session, project_id)
    return share


def change_key(session: Session, principal: Principal, key_id: str, body: Limits) -> KeyLimits:
    """Change the limits of a key.

    A lead may change the keys of its project but not admin keys. A lead cannot set a limit above
    the limit of its own key, so that no lead can raise its own limits.
    """
    key = session.get(ApiKeyRow, key_id, with_for_update=True)
    is_hidden = not principal.is_admin and (
        key is None or key.role == "admin" or key.project_id != principal.project_id
    )
    if key is None or is_hidden:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no key {key_id!r}",
            hint="GET /v1/organization/projects/{project_id}/api_keys lists the keys",
        )
    own = session.get_one(ApiKeyRow, principal.key_id)
    for name in body.model_fields_set:
        if not principal.is_admin:
            _check_limit(name, getattr(own, name), getattr(body, name))
        setattr(key, name, getattr(body, name))
    return KeyLimits(
        id=key.id,
        name=key.name,
        max_running_jobs=key.max_running_jobs,
        max_queued_jobs=key.max_queued_jobs,
        max_device_hours=key.max_device_hours,
    )


def _check_limit(name: str, own: float | None, asked: float | None) -> None:
    if own is not None and (asked is None or asked > own):
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"{name}: the limit of this key is {own:g}, so the key cannot set "
            + ("no limit" if asked is None else f"{asked:g}"),
            param=name,
            hint=f"send at most {own:g}, or ask an admin",
        )


def _to_wire(row: ProjectRow, counts: dict[tuple[str, bool], int], now: float) -> ProjectShare:
    return ProjectShare(
        id=row.id,
        name=row.name,
        weight=row.weight,
        guaranteed_devices=row.guaranteed_devices,
        max_running_jobs=row.max_running_jobs,
        max_queued_jobs=row.max_queued_jobs,
        max_device_hours=row.max_device_hours,
        running_jobs=counts.get((row.id, False), 0),
        queued_jobs=counts.get((row.id, True), 0),
        decayed_device_seconds=round(usage.decayed_seconds(row.usage_log, now), 3),
    )
