"""Resume points: full-state checkpoints from which a job can continue on any host.

A job keeps the resume points set by `recipe.keep_every` and, until it succeeds, its newest two. The
resume point that an unfinished fork starts from is kept until the fork ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select
from sqlalchemy.orm import Session, aliased

from tunesmith_schema import ErrorCode, JobState, ResumePoint, RunEvent, StoredFile
from tunesmith_schema.retention import keeps_step, resume_points_to_keep
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import JobRow, ResumePointRow

from ..results import curve_chunks, samples
from ..training import events, job_fork, stored_job

log = logging.getLogger(__name__)


def record(session: Session, job: JobRow, event: RunEvent) -> None:
    """Store the resume point of a RESUME_POINT event; an earlier attempt's resume point for the
    same step is replaced."""
    step, files = event.data.get("step"), event.files
    if not isinstance(step, int) or not files:
        return  # not stored, or replaced by a newer resume point before the upload
    row = session.get(ResumePointRow, (job.id, step))
    if row is None:
        row = ResumePointRow(job_id=job.id, step=step)
        session.add(row)
    row.created_at = time.time()
    row.files = [file.model_dump() for file in sorted(files, key=lambda file: file.name)]
    row.bytes = sum(file.bytes for file in files)
    keep_every = stored_job.recipe(job).keep_every
    row.stays = keeps_step(step, keep_every)
    session.flush()
    steps = select(ResumePointRow.step).where(ResumePointRow.job_id == job.id)
    kept = resume_points_to_keep(session.scalars(steps).all(), keep_every)
    _delete(session, ResumePointRow.job_id == job.id, ResumePointRow.step.not_in(kept))


def record_resume(session: Session, job: JobRow, event: RunEvent) -> None:
    """Reset the job to the step from which the run continues; the run repeats and reports all later
    steps."""
    step = event.data.get("step")
    if not isinstance(step, int):
        return
    curve_chunks.make_void(session, job, step)
    events.delete_metrics_after(session, job.id, step)
    samples.delete_after(session, job.id, step)
    job.step = job.claimed_step = step
    job.measured_at = job.measured_step = None
    session.flush()
    # The run rejected newer resume points, so they are not offered again.
    _delete(session, ResumePointRow.job_id == job.id, ResumePointRow.step > step)


def for_claim(session: Session, job: JobRow) -> tuple[list[ResumePoint], bool]:
    """Return the resume points for a claim, newest first. The second value of the result is True if
    the resume points come from another job with other settings."""
    own = session.scalars(
        select(ResumePointRow)
        .where(ResumePointRow.job_id == job.id)
        .order_by(ResumePointRow.step.desc())
    ).all()
    if own or job.forked_from is None:
        return _readable(own), False
    parent_point = session.get(ResumePointRow, (job.forked_from, job.forked_step))
    return _readable([parent_point] if parent_point else []), job_fork.has_changed(session, job)


def find_file(session: Session, job: JobRow, sha256: str) -> StoredFile:
    """Return a file of a resume point that the job can use."""
    points, _ = for_claim(session, job)
    for point in points:
        for file in point.files:
            if file.sha256 == sha256:
                return file
    # A 404 would tell the worker that it has lost the job.
    raise BadRequest(
        ErrorCode.NOT_FOUND, f"no resume point of job {job.id} has a file with sha256 {sha256}"
    )


def drop_unneeded(session: Session, settings: Settings) -> None:
    """Delete the resume points of succeeded jobs, and of jobs that failed or were cancelled long
    ago, unless the recipe keeps them. The janitor's next sweep deletes the stored files.

    This function first locks the jobs, and then looks for forks. A single DELETE could miss a fork
    that another transaction just inserted, because PostgreSQL does not repeat a subquery after it
    has waited for a lock. A transaction that creates a fork also locks the job that the fork starts
    from."""
    long_ago = time.time() - settings.resume_point_days * 86_400
    over = or_(
        JobRow.state == JobState.SUCCEEDED,
        and_(
            JobRow.state.in_((JobState.FAILED, JobState.CANCELLED)), JobRow.finished_at < long_ago
        ),
    )
    has_some = exists().where(
        ResumePointRow.job_id == JobRow.id, ResumePointRow.stays.is_(False), ~_is_needed()
    )
    locked = session.scalars(
        select(JobRow.id).where(over, has_some).with_for_update(skip_locked=True)
    ).all()
    if locked:
        _delete(session, ResumePointRow.job_id.in_(locked), ResumePointRow.stays.is_(False))


def _delete(session: Session, *conditions: ColumnElement[bool]) -> None:
    """Delete the matching resume points, unless an unfinished fork starts from them. The caller has
    locked the jobs of the resume points."""
    session.execute(
        delete(ResumePointRow).where(*conditions, ~_is_needed()),
        execution_options={"synchronize_session": "fetch"},
    )


def _is_needed() -> ColumnElement[bool]:
    fork = aliased(JobRow)
    return exists().where(
        and_(
            fork.forked_from == ResumePointRow.job_id,
            fork.forked_step == ResumePointRow.step,
            fork.finished_at.is_(None),
        )
    )


def _readable(rows: Sequence[ResumePointRow]) -> list[ResumePoint]:
    points = []
    for row in rows:
        try:
            files = [StoredFile.model_validate(file) for file in row.files]
            points.append(ResumePoint(step=row.step, files=files))
        except (ValueError, TypeError) as error:
            log.warning("resume point %d of %s cannot be read: %s", row.step, row.job_id, error)
    return points
