"""Limits of a project and of a key: queued jobs, running jobs, and device-hours in 30 days.
Evaluations on demand count as jobs.

A request that creates a job counts the waiting jobs; a claim counts the running jobs. A create
request or a claim first locks the row of the project or key that has the limit, so that two
simultaneous requests cannot exceed the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from sqlalchemy import ColumnElement, CompoundSelect, ScalarSelect, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from tunesmith_schema import ErrorCode, EvaluationStatus, JobState
from tunesmith_server.core.database import constant, epoch_now
from tunesmith_server.core.errors import TooManyRequests
from tunesmith_server.models import ApiKeyRow, EvaluationRow, JobRow, ProjectRow, UsageRow
from tunesmith_server.models.scope import all_projects

from .usage import DAY, lock_project

HELD = (JobState.RUNNING, JobState.PAUSING)
"""States of a job in which a worker holds the job's lease."""
WAITING = (JobState.VALIDATING_FILES, JobState.QUEUED, JobState.PAUSED)
"""States of the jobs that `max_queued_jobs` limits."""
WINDOW_DAYS = 30


@dataclass(frozen=True, kw_only=True)
class _Link:
    """Column of jobs, evaluations and usage rows with the id of their project or API key. The
    limits of the project or key are in `table`."""

    column: str
    table: Any  # Any: ProjectRow or ApiKeyRow

    def of(self, rows: Any) -> ColumnElement[bool]:  # Any: an aliased table
        refers: ColumnElement[bool] = getattr(rows, self.column) == self.table.id
        return refers


class Project(Protocol):
    """Project with the columns that the limits use: a ProjectRow, or a row of a query with these
    columns."""

    @property
    def id(self) -> str: ...
    @property
    def archived_at(self) -> float | None: ...
    @property
    def max_running_jobs(self) -> int | None: ...


_HELD, _USED, _EVALUATED = aliased(JobRow), aliased(UsageRow), aliased(EvaluationRow)
_PROJECT = _Link(column="project_id", table=ProjectRow)
_KEY = _Link(column="owner", table=ApiKeyRow)


def is_held(jobs: Any) -> ColumnElement[bool]:  # Any: JobRow or an alias
    """Return the SQL condition that a worker holds the job."""
    held: ColumnElement[bool] = jobs.state.in_([constant(state) for state in HELD])
    return held


def check_create(session: Session, project_id: str, owner: str) -> None:
    """Refuse a new job if the waiting jobs have reached a limit. Locks the rows with limits."""
    limits = session.execute(
        select(ProjectRow.max_queued_jobs, ApiKeyRow.max_queued_jobs)
        .select_from(ProjectRow)
        .outerjoin(ApiKeyRow, ApiKeyRow.id == owner)
        .where(ProjectRow.id == project_id)
    ).one_or_none()
    of_project, of_key = limits or (None, None)
    if of_project is not None:
        limit = lock_project(session, project_id).max_queued_jobs
        _check(session, "project_id", project_id, limit, "the project")
    if of_key is not None:
        limit = _lock_key(session, owner).max_queued_jobs
        _check(session, "owner", owner, limit, "this key")


def _check(session: Session, column: str, value: str, limit: int | None, name: str) -> None:
    waiting = 0
    for row, is_waiting in (
        (JobRow, JobRow.state.in_(WAITING)),
        (EvaluationRow, EvaluationRow.status == EvaluationStatus.QUEUED),
    ):
        count = select(func.count()).select_from(row)
        count = count.where(getattr(row, column) == value, is_waiting)
        # An admin key has jobs in several projects.
        waiting += session.scalar(all_projects(count)) or 0
    if limit is not None and waiting >= limit:
        raise TooManyRequests(
            ErrorCode.QUOTA_EXCEEDED,
            f"{name} has {waiting} waiting jobs and evaluations, and its limit is {limit}",
            hint="wait until a job has started, or cancel one",
        )


def may_run(session: Session, project: Project, owner: str, of_key: int | None) -> bool:
    """Return True if the limits allow another running job or evaluation. The caller has locked the
    project.
    `of_key`: maximum number of running jobs of the key `owner`."""
    if project.archived_at is not None:
        return False
    key = None if of_key is None else _lock_key(session, owner)
    for row, column in ((project, "project_id"), (key, "owner")):
        if row is None or row.max_running_jobs is None:
            continue
        running = 0
        for work, is_running in (
            (JobRow, JobRow.state.in_(HELD)),
            (EvaluationRow, EvaluationRow.status == EvaluationStatus.RUNNING),
        ):
            count = select(func.count()).select_from(work)
            count = count.where(getattr(work, column) == row.id, is_running)
            running += session.scalar(count) or 0
        if running >= row.max_running_jobs:
            return False
    return True


def project_has_room() -> ColumnElement[bool]:
    """Return the SQL condition on `ProjectRow` that the project is active and that its limits allow
    another running job."""
    return and_(
        ProjectRow.archived_at.is_(None),
        or_(
            ProjectRow.max_running_jobs.is_(None),
            _running(_PROJECT) < ProjectRow.max_running_jobs,
        ),
        or_(
            ProjectRow.max_device_hours.is_(None),
            _used_seconds(_PROJECT) < ProjectRow.max_device_hours * 3600,
        ),
    )


def key_has_room(owner: Any) -> ColumnElement[bool]:  # Any: a column of an alias
    """Return the SQL condition that the limits of the key allow another running job."""
    is_full = or_(
        and_(
            ApiKeyRow.max_running_jobs.is_not(None),
            _running(_KEY) >= ApiKeyRow.max_running_jobs,
        ),
        and_(
            ApiKeyRow.max_device_hours.is_not(None),
            _used_seconds(_KEY) >= ApiKeyRow.max_device_hours * 3600,
        ),
    )
    has_room: ColumnElement[bool] = owner.not_in(select(ApiKeyRow.id).where(is_full))
    return has_room


@cache
def over_device_hours() -> CompoundSelect[str]:
    """Return a query of the ids of projects and keys that have used up their device-hours."""
    queries = [
        select(link.table.id).where(
            link.table.max_device_hours.is_not(None),
            _used_seconds(link) >= link.table.max_device_hours * 3600,
        )
        for link in (_PROJECT, _KEY)
    ]
    return queries[0].union_all(queries[1])


def _lock_key(session: Session, key_id: str) -> ApiKeyRow:
    return session.get_one(ApiKeyRow, key_id, with_for_update=True, populate_existing=True)


def running_jobs(link: _Link = _PROJECT) -> ScalarSelect[int]:
    """Return a subquery that counts the running jobs of a project or key. By default, the project
    is the project of the outer query."""
    query = select(func.count()).select_from(_HELD).where(link.of(_HELD), is_held(_HELD))
    return query.correlate(link.table).scalar_subquery()


def _running(link: _Link) -> ColumnElement[int]:
    evaluations = select(func.count()).select_from(_EVALUATED)
    evaluations = evaluations.where(
        link.of(_EVALUATED), _EVALUATED.status == constant(EvaluationStatus.RUNNING)
    )
    return running_jobs(link) + evaluations.correlate(link.table).scalar_subquery()


def _used_seconds(link: _Link) -> ColumnElement[float]:
    """Return the SQL expression of the device-time of the last 30 days: ended attempts and running
    jobs, without lost work."""
    ended = select(func.coalesce(func.sum(_USED.device_seconds - _USED.lost_seconds), 0.0)).where(
        link.of(_USED), _USED.day > epoch_now() / DAY - WINDOW_DAYS
    )
    running = select(func.coalesce(func.sum(epoch_now() - _HELD.claimed_at), 0.0)).where(
        link.of(_HELD), is_held(_HELD)
    )
    parts = (query.correlate(link.table).scalar_subquery() for query in (ended, running))
    return next(parts) + next(parts)
