"""Order of the queue, which determines the job that a worker gets.

Rule 1: Interactive jobs come first. Interactive jobs are short, and each key can run one
interactive job at a time.

Rule 2: Jobs of a project that has fewer devices than its guarantee come before other jobs.

Rule 3: The project with the least usage per weight comes first. Usage is device-time, and older
device-time counts less. For rule 3, the query compares logarithms of usage per weight at a fixed
time; their order is also the order of the present usage per weight (usage.py).

Rule 4: Jobs with a higher priority come first.

Rule 5: Older jobs come first.

Rule 6: Jobs of the same age are ordered by their ids.

Rules 2 and 3 compare projects; the other rules determine the order of the jobs of one project. The
index `ix_jobs_claim` sorts the queued jobs of each project by rules 1, 4, 5 and 6. Therefore, the
query reads only the first job of each project, not the whole queue.
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
    The query has parameters for the worker's id and host (`reservations.names_of`)."""
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
