"""Lineage of a job: base model, data, origin, forks, retries and results."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from tunesmith_schema import JobLineage, StoredResumePoint
from tunesmith_schema.lineage import RelatedJob, RelatedModel
from tunesmith_server.models import AdapterRow, JobRow, ResumePointRow

MAX_RELATED = 100
"""Maximum length of each list in a lineage: forks, retries and results."""


def retrieve(session: Session, job: JobRow) -> JobLineage:
    """Return the lineage. The lineage contains only jobs of the session's project."""
    return JobLineage(
        job_id=job.id,
        model=job.model,
        base_adapter_id=job.base_adapter_id,
        training_file=job.training_file,
        validation_file=job.validation_file,
        forked_from=_origin(session, job.forked_from, job.forked_step),
        retry_of=_origin(session, job.retry_of, None),
        forks=_jobs(session, JobRow.forked_from == job.id),
        retries=_jobs(session, JobRow.retry_of == job.id),
        results=_results(session, job),
    )


def resume_points(session: Session, job: JobRow) -> list[StoredResumePoint]:
    """Return the job's resume points, newest first."""
    rows = session.scalars(
        select(ResumePointRow)
        .where(ResumePointRow.job_id == job.id)
        .order_by(ResumePointRow.step.desc())
    )
    return [
        StoredResumePoint(
            id=str(row.step),
            step=row.step,
            created_at=int(row.created_at),
            bytes=row.bytes,
            stays=row.stays,
        )
        for row in rows
    ]


def _origin(session: Session, job_id: str | None, step: int | None) -> RelatedJob | None:
    if job_id is None:
        return None
    row = session.get(JobRow, job_id)
    if row is None:
        return RelatedJob(id=job_id, state="deleted", step=step)
    return RelatedJob(id=row.id, name=row.name, suffix=row.suffix, state=row.state, step=step)


def _jobs(session: Session, condition: ColumnElement[bool]) -> list[RelatedJob]:
    rows = session.execute(
        select(JobRow.id, JobRow.name, JobRow.suffix, JobRow.state, JobRow.forked_step)
        .where(condition)
        .order_by(JobRow.created_at.desc(), JobRow.id.desc())
        .limit(MAX_RELATED)
    )
    return [
        RelatedJob(
            id=row.id, name=row.name, suffix=row.suffix, state=row.state, step=row.forked_step
        )
        for row in rows
    ]


def _results(session: Session, job: JobRow) -> list[RelatedModel]:
    rows = session.execute(
        select(AdapterRow.id, AdapterRow.model, AdapterRow.kind, AdapterRow.step)
        .where(AdapterRow.job_id == job.id)
        .order_by(AdapterRow.created_at.desc(), AdapterRow.id.desc())
        .limit(MAX_RELATED)
    )
    return [
        RelatedModel(adapter_id=row.id, model=row.model, kind=row.kind, step=row.step)
        for row in rows
    ]
