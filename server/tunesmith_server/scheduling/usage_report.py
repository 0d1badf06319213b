"""Device-time of the last days by project, user, model and day, running attempts included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunesmith_schema import DeviceUsage, DeviceUsageItem
from tunesmith_server.models import ApiKeyRow, IdleRow, JobRow, ProjectRow, UsageRow, UserRow
from tunesmith_server.models.scope import all_projects

from . import usage
from .limits import HELD

Group = Literal["project", "user", "model", "day"]


@dataclass(frozen=True, kw_only=True)
class _Part:
    project_id: str
    owner: str
    model: str
    day: int
    seconds: float
    lost: float


def report(
    session: Session, days: int, by: Collection[Group], project_id: str | None
) -> DeviceUsage:
    """Return the device-time of the last `days` days, summed in groups. If `by` has `project` and
    `day`, there is one sum per project and day. `project_id` limits the device-time to one
    project; the idle time always includes all workers."""
    now = usage.database_now(session)
    first = int(now // usage.DAY) - days + 1
    projects = {row.id: row.name for row in session.scalars(select(ProjectRow))}
    users = _users(session) if "user" in by else {}
    sums: dict[tuple[str | None, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for part in (*_ended(session, first, project_id), *_running(session, first, now, project_id)):
        names = {
            "project": projects.get(part.project_id, part.project_id),
            "user": users.get(part.owner, part.owner),
            "model": part.model,
            "day": datetime.fromtimestamp(part.day * usage.DAY, UTC).strftime("%Y-%m-%d"),
        }
        group = tuple(
            names[name] if name in by else None for name in ("project", "user", "model", "day")
        )
        sums[group][0] += part.seconds
        sums[group][1] += part.lost
    idle = session.scalar(select(func.sum(IdleRow.seconds)).where(IdleRow.day >= first))
    items = [
        DeviceUsageItem(
            project=group[0],
            user=group[1],
            model=group[2],
            day=group[3],
            device_seconds=round(seconds, 3),
            lost_seconds=round(lost, 3),
        )
        for group, (seconds, lost) in sums.items()
    ]
    return DeviceUsage(
        days=days,
        device_seconds=round(sum(item.device_seconds for item in items), 3),
        lost_seconds=round(sum(item.lost_seconds for item in items), 3),
        idle_seconds=round(idle or 0.0, 3),
        data=sorted(items, key=lambda item: (item.day or "", -item.device_seconds)),
    )


def _users(session: Session) -> dict[str, str]:
    rows = session.execute(
        select(ApiKeyRow.id, func.coalesce(UserRow.name, ApiKeyRow.name)).outerjoin(
            UserRow, UserRow.id == ApiKeyRow.user_id
        )
    )
    return {key_id: name for key_id, name in rows}  # dict() cannot type a row


def _ended(session: Session, first: int, project_id: str | None) -> Iterator[_Part]:
    query = select(UsageRow).where(UsageRow.day >= first)
    if project_id is not None:
        query = query.where(UsageRow.project_id == project_id)
    for row in session.scalars(query):
        yield _Part(
            project_id=row.project_id,
            owner=row.owner,
            model=row.model,
            day=row.day,
            seconds=row.device_seconds,
            lost=row.lost_seconds,
        )


def _running(session: Session, first: int, now: float, project_id: str | None) -> Iterator[_Part]:
    query = select(JobRow.project_id, JobRow.owner, JobRow.model, JobRow.claimed_at).where(
        JobRow.state.in_(HELD), JobRow.claimed_at.is_not(None)
    )
    if project_id is not None:
        query = query.where(JobRow.project_id == project_id)
    for project, owner, model, claimed_at in session.execute(all_projects(query)):
        for day, start, stop in usage.split_days(claimed_at or now, now):
            if day >= first:
                yield _Part(
                    project_id=project, owner=owner, model=model, day=day, seconds=stop - start,
                    lost=0.0,
                )  # fmt: skip
