"""Device-time of projects: the decayed usage that orders the queue, and the totals of each day.

Without new device-time, the usage of a project halves in a day. In a project's usage at time t, a
second of device-time that was used at time s counts 2**((s - t) / day). `projects.usage_log`
stores the logarithm of the usage at the fixed time t = 0 (1970), so the stored value changes only
when the project uses a device. At any time, the stored values put the projects in the same order as
their decayed usage. The logarithm does not overflow (decision 0035).
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tunesmith_server.core.database import epoch_now
from tunesmith_server.models import IdleRow, JobRow, ProjectRow, ResumePointRow, UsageRow

DAY = 86_400.0
HALF_LIFE_SECONDS = DAY
_RATE = math.log(2) / HALF_LIFE_SECONDS
CHARGE_AHEAD_SECONDS = 600.0
"""Device-time that a claim charges in advance.

When a running job has used up the charged time, its project is charged for another
CHARGE_AHEAD_SECONDS. Without the advance, a project could claim all devices before any device-time
is charged.
"""
NO_USAGE = -1e9
"""Value that replaces the logarithm of zero."""


class Project(Protocol):
    """Project with the columns that the usage needs: a ProjectRow, or a row of a query with these
    columns."""

    @property
    def id(self) -> str: ...
    @property
    def usage_log(self) -> float | None: ...


def added(usage: float | None, start: float, end: float) -> float | None:
    """Return the logarithm of the usage after a device was used from `start` to `end`, Unix
    seconds."""
    if end <= start:
        return usage
    new = _log_integral(start, end)
    if usage is None:
        return new
    high, low = max(usage, new), min(usage, new)
    return high + math.log1p(math.exp(low - high))


def removed(usage: float | None, start: float, end: float) -> float | None:
    """Return the logarithm of the usage after the removal of device-time that `added` had
    counted."""
    if usage is None or end <= start:
        return usage
    share = math.exp(min(0.0, _log_integral(start, end) - usage))
    return usage + math.log1p(-share) if share < 1 - 1e-12 else None


def decayed_seconds(usage: float | None, now: float) -> float:
    """Return the decayed usage at `now` in device-seconds."""
    return 0.0 if usage is None else math.exp(usage - now * _RATE)


def _log_integral(start: float, end: float) -> float:
    return end * _RATE - math.log(_RATE) + math.log(-math.expm1((start - end) * _RATE))


def database_now(session: Session) -> float:
    return session.execute(select(epoch_now())).scalar_one()


def begin(session: Session, project: Project, start: float, end: float) -> None:
    """Charge a project in advance for the time from `start` to `end` of a job that a worker claims.
    The caller has locked the project."""
    usage = added(project.usage_log, start, end)
    session.execute(_CHARGE, {"project": project.id, "usage": usage})


_PROJECTS: Any = ProjectRow.__table__  # Any: a FromClause in SQLAlchemy's types
_CHARGE = (
    update(_PROJECTS)
    .where(_PROJECTS.c.id == bindparam("project"))
    .values(usage_log=bindparam("usage"))
)


def continue_charging(session: Session, job: JobRow, now: float) -> None:
    """Charge a running job's project for more time in advance, if the time charged so far is
    over."""
    if job.charged_until is None or now <= job.charged_until:
        return
    until = now + CHARGE_AHEAD_SECONDS
    project = lock_project(session, job.project_id)
    project.usage_log = added(project.usage_log, job.charged_until, until)
    job.charged_until = until


def settle(session: Session, job: JobRow, *, work_is_lost: bool) -> None:
    """Charge the project for the exact device-time of an ended attempt, and add this time to the
    totals. If `work_is_lost` is True, the project does not pay for the time after the attempt's
    newest resume point."""
    if job.charged_until is None or job.claimed_at is None:
        return
    end = max(job.claimed_at, database_now(session))
    kept_until = max(job.claimed_at, min(end, _newest_point(session, job))) if work_is_lost else end
    project = lock_project(session, job.project_id)
    project.usage_log = added(project.usage_log, job.charged_until, kept_until)
    project.usage_log = removed(project.usage_log, kept_until, job.charged_until)
    for day, start, stop in split_days(job.claimed_at, end):
        lost = max(0.0, stop - max(start, kept_until))
        _add(
            session,
            UsageRow,
            {"project_id": job.project_id, "day": day, "owner": job.owner, "model": job.model},
            {"device_seconds": stop - start, "lost_seconds": lost},
        )
    job.device_seconds += end - job.claimed_at
    job.charged_until = None


def charge(
    session: Session, project_id: str, owner: str, model: str, start: float, end: float
) -> None:
    """Charge the project for device-time of an evaluation, and add this time to the totals."""
    project = lock_project(session, project_id)
    project.usage_log = added(project.usage_log, start, end)
    for day, begun, stop in split_days(start, end):
        key = {"project_id": project_id, "day": day, "owner": owner, "model": model}
        _add(session, UsageRow, key, {"device_seconds": stop - begun, "lost_seconds": 0.0})


def add_idle(session: Session, host: str, start: float, end: float) -> None:
    """Count the time in which a ready worker had no job."""
    for day, begun, stop in split_days(start, end):
        _add(session, IdleRow, {"day": day, "host": host}, {"seconds": stop - begun})


def lock_project(session: Session, project_id: str) -> ProjectRow:
    return session.get_one(ProjectRow, project_id, with_for_update=True, populate_existing=True)


def lock_further_project(session: Session, project_id: str) -> ProjectRow | None:
    """Lock a project in a transaction that may already have locked other projects. Return None if
    another transaction has locked the project. Waiting for the lock could be a deadlock: the other
    transaction may be waiting for a project that this transaction has locked."""
    return session.get(
        ProjectRow, project_id, with_for_update={"skip_locked": True}, populate_existing=True
    )


def _newest_point(session: Session, job: JobRow) -> float:
    newest = select(func.max(ResumePointRow.created_at)).where(ResumePointRow.job_id == job.id)
    return session.scalar(newest) or 0.0


def split_days(start: float, end: float) -> list[tuple[int, float, float]]:
    """Split a time range at each midnight (UTC); return the day, the start and the end of each
    part."""
    pieces = []
    while start < end:
        day = int(start // DAY)
        stop = min(end, (day + 1) * DAY)
        pieces.append((day, start, stop))
        start = stop
    return pieces


def _add(
    session: Session,
    table: type[UsageRow | IdleRow],
    key: dict[str, Any],  # Any: column values
    amounts: dict[str, float],
) -> None:
    insert: Any = sqlite.insert  # Any: no common base class has on_conflict_do_update
    if session.get_bind().dialect.name == "postgresql":
        insert = postgresql.insert
    statement = insert(table).values(**key, **amounts)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=list(key),
            set_={name: getattr(table, name) + value for name, value in amounts.items()},
        )
    )
