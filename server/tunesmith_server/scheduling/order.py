"""Order of the queue, which determines the job that a worker gets.

1. Interactive jobs come first. They are short, and each key can run one at a time.
2. Next come jobs of a project that has fewer devices than its guarantee.
3. Next come jobs of the project with the least decayed device-time per weight. The quotient is
   stored as a difference of logarithms, which gives the same order at any time (usage.py).
4. Next come jobs with a higher priority.
5. Next come older jobs.
6. The job's id decides between jobs of the same age.

If only one project has jobs, rules 2 and 3 have no effect.

Rules 1, 4, 5 and 6 determine the order within one project; the index `ix_jobs_claim` has their
columns in this order. The query therefore reads one job of each project, not the whole queue.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, or_, select
from sqlalchemy.orm import aliased

from tunesmith_server.core.database import constant
from tunesmith_server.models import JobRow, ProjectRow

from . import limits, reservations
from .eligibility import Abilities, Jobs, can_run, may_start
from .usage import NO_USAGE

_FIRST, _HELD = aliased(JobRow), aliased(JobRow)


def of_jobs(jobs: Jobs) -> tuple[Any, ...]:  # Any: SQLAlchemy's own
    """Return the columns for ORDER BY in a query of the jobs of one project."""
    return jobs.interactive.desc(), jobs.priority.desc(), jobs.created_at, jobs.id


def of_queue() -> tuple[Any, ...]:  # Any: SQLAlchemy's own
    """Return the columns for ORDER BY in a query of the whole queue, which joins `ProjectRow` with
    `JobRow`."""
    interactive, *rest = of_jobs(JobRow)
    return (interactive, *of_projects(), *rest)


def of_projects() -> tuple[Any, ...]:  # Any: SQLAlchemy's own
    """Return the columns for ORDER BY in a query of projects (`ProjectRow`)."""
    # Tested first, because it is cheap: the other condition counts running jobs.
    has_no_guarantee = (ProjectRow.guaranteed_devices == constant(0), 1)
    is_guaranteed = (limits.running_jobs() < ProjectRow.guaranteed_devices, 0)
    usage = func.coalesce(ProjectRow.usage_log, NO_USAGE) - func.ln(ProjectRow.weight)
    return (case(has_no_guarantee, is_guaranteed, else_=1), usage)


@lru_cache(maxsize=512)  # building the query takes longer than executing it
def next_job(worker: Abilities, tried: tuple[str, ...] = ()) -> Select[str, str]:
    """Return a query of the job that the worker gets: id and project. Jobs in `tried` are left out.
    The query's parameters are the worker's names in reservations (`reservations.names_of`)."""
    head = (
        select(_FIRST.id)
        .where(_FIRST.project_id == ProjectRow.id, *_may_be_claimed(worker))
        .order_by(*of_jobs(_FIRST))
        .limit(constant(1))
    )
    if tried:
        head = head.where(_FIRST.id.not_in(tried))
    return (
        select(JobRow.id, JobRow.project_id)
        .select_from(ProjectRow)
        .join(JobRow, JobRow.id == head.correlate(ProjectRow).scalar_subquery())
        .where(limits.project_has_room(), ~reservations.refuse(ProjectRow.id))
        .order_by(*of_queue())
        .limit(constant(1))
    )


def _may_be_claimed(worker: Abilities) -> tuple[ColumnElement[bool], ...]:
    in_lane = select(_HELD.id).where(
        _HELD.owner == _FIRST.owner, limits.is_held(_HELD), _HELD.interactive.is_(True)
    )
    return (
        may_start(_FIRST),
        can_run(worker, _FIRST),
        limits.key_has_room(_FIRST.owner),
        or_(_FIRST.interactive.is_(False), ~in_lane.correlate(_FIRST).exists()),
    )
