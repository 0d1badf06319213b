"""Deletion of a job and of all rows and files that belong to the job. The job's data files are
kept."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, ErrorCode, JobState
from tunesmith_server.core.errors import BadRequest, Conflict
from tunesmith_server.models import (
    AdapterRow,
    CheckpointRow,
    CurveRow,
    EventRow,
    IdempotencyRow,
    JobLinkRow,
    JobRow,
    MetricRow,
    ReportRow,
    ResumePointRow,
    SamplesRow,
)
from tunesmith_server.models.scope import all_projects

from ..catalogue import adapters
from . import jobs

_TABLES: tuple[Any, ...] = (  # Any: mapped classes with job_id
    EventRow, MetricRow, CurveRow, SamplesRow, ReportRow, ResumePointRow, CheckpointRow, AdapterRow,
    IdempotencyRow, JobLinkRow,
)  # fmt: skip
"""Tables with rows of a job. Each table comes before the tables that its rows refer to."""


def delete_job(session: Session, job_id: str) -> list[str]:
    """Delete an ended job with its tuned models, checkpoints, resume points, samples, metrics and
    events, and return the models' names. The janitor, the server's periodic task, later deletes
    the stored files."""
    job = jobs.lock(session, job_id)  # creating a fork locks this row too
    if job.state in set(JobState) - TERMINAL:
        raise BadRequest(
            ErrorCode.NOT_DELETABLE,
            f"job {job_id!r} is {job.state}: only an ended job can be deleted",
            hint=f"POST /v1/fine_tuning/jobs/{job_id}/cancel ends it",
        )
    # A new job locks the weights that it starts from.
    weights = select(AdapterRow.id, AdapterRow.model).where(AdapterRow.job_id == job_id)
    models = {row.id: row.model for row in session.execute(weights.with_for_update())}
    users = select(JobRow.id, JobRow.state, JobRow.project_id).where(
        or_(JobRow.base_adapter_id.in_(models), JobRow.forked_from == job_id),
        JobRow.state.not_in(TERMINAL),
    )
    if user := session.execute(all_projects(users)).first():
        raise Conflict(
            ErrorCode.JOB_IN_USE,
            f"{adapters.named_user(job.project_id, user)} starts from job {job_id!r}",
            hint="cancel that job first, or wait until it has ended",
        )
    for table in _TABLES:
        session.execute(
            delete(table).where(table.job_id == job_id),
            execution_options={"synchronize_session": False},
        )
    adapters.forget_permissions(session, list(models.values()))
    session.execute(delete(JobRow).where(JobRow.id == job_id))
    return list(models.values())
