"""State and progress of many jobs, for live lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, JobState
from tunesmith_schema.progress import JobProgress
from tunesmith_server.core.database import epoch_now
from tunesmith_server.models import JobRow

from . import stored_job

UNFINISHED = frozenset(str(state) for state in JobState if state not in TERMINAL)
_IDS_AT_A_TIME = 500

Head = tuple[Any, ...]  # Any: columns of a row
"""Values of some columns of a job. When a job changes, at least one value of its head changes."""


def heads(
    session: Session, projects: Sequence[str], created_after: float
) -> dict[str, dict[str, Head]]:
    """Return the heads of all unfinished jobs and of jobs that were created after `created_after`
    (Unix seconds). The outer keys are project ids, the inner keys are job ids."""
    rows = session.execute(
        select(
            *(JobRow.project_id, JobRow.id, JobRow.last_seq, JobRow.state, JobRow.step),
            *(JobRow.name, JobRow.pinned),
        )
        .where(JobRow.project_id.in_(projects))
        .where(or_(JobRow.state.in_(UNFINISHED), JobRow.created_at > created_after))
    )
    found: dict[str, dict[str, Head]] = {project: {} for project in projects}
    for project, job_id, *head in rows:
        found[project][job_id] = tuple(head)
    return found


def read(session: Session, job_ids: Iterable[str]) -> list[JobProgress]:
    """Return the progress of these jobs; the state of a missing job is `deleted`."""
    found: dict[str, JobProgress] = {}
    wanted = list(job_ids)
    for first in range(0, len(wanted), _IDS_AT_A_TIME):
        part = wanted[first : first + _IDS_AT_A_TIME]
        found |= {job.id: job for job in _select(session, JobRow.id.in_(part))}
    return [found.get(job_id) or JobProgress(id=job_id, state="deleted") for job_id in wanted]


def ended_since(session: Session, project: str, seconds: float) -> list[JobProgress]:
    """Return the jobs of a project that ended at or after this time (Unix seconds)."""
    return _select(session, JobRow.project_id == project, JobRow.finished_at >= seconds)


def _select(session: Session, *conditions: ColumnElement[bool]) -> list[JobProgress]:
    rows = session.execute(
        select(
            *(JobRow.id, JobRow.state, JobRow.phase, JobRow.attempt, JobRow.step),
            *(JobRow.total_steps, JobRow.last_metrics, JobRow.finished_at, JobRow.lease_owner),
            *(JobRow.name, JobRow.pinned, JobRow.last_seq),
            *(JobRow.measured_at, JobRow.measured_step, epoch_now().label("read_at")),
        )
        .where(*conditions)
        .order_by(JobRow.created_at, JobRow.id)
    )
    return [_progress(row) for row in rows]


def _progress(row: Any) -> JobProgress:  # Any: a row of `_select`
    """Return the progress of a job. If this release cannot read the row, return only id and
    state."""
    try:
        return JobProgress(
            id=row.id,
            state=row.state,
            phase=row.phase,
            attempt=row.attempt or 0,
            step=row.step or 0,
            total_steps=row.total_steps,
            last_metrics=row.last_metrics or {},
            estimated_finish=stored_job.estimated_finish(row),
            finished_at=int(row.finished_at) if row.finished_at else None,
            worker_id=stored_job.worker_of(row),
            name=row.name,
            pinned=bool(row.pinned),
            last_seq=row.last_seq,
        )
    except (ValueError, TypeError):
        return JobProgress(id=row.id, state=str(row.state))
