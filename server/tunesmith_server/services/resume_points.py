"""Resume points: what a job can go on from, on whichever host it is next.

A job keeps those that `recipe.keep_every` names and, until it has succeeded, its newest two; one
that a fork is still to start from stays as long as that fork may need it.
"""

from __future__ import annotations

import time

from sqlalchemy import ColumnElement, and_, delete, exists, select
from sqlalchemy.orm import Session, aliased

from tunesmith_schema import ErrorCode, JobState, ResumePoint, RunEvent, StoredFile
from tunesmith_schema.retention import keeps_step, resume_points_to_keep
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.models import JobRow, ResumePointRow

from . import events, job_fork, samples


def record(session: Session, job: JobRow, event: RunEvent) -> None:
    """A RESUME_POINT event with its files; the same step of an earlier attempt is replaced."""
    step, files = event.data.get("step"), event.files
    if not isinstance(step, int) or not files:
        return  # it was overtaken by a newer one, or could not be stored
    row = session.get(ResumePointRow, (job.id, step))
    if row is None:
        row = ResumePointRow(job_id=job.id, step=step)
        session.add(row)
    row.created_at = time.time()
    row.files = [file.model_dump() for file in sorted(files, key=lambda file: file.name)]
    row.bytes = sum(file.bytes for file in files)
    keep_every = job.recipe.get("keep_every")
    row.stays = keeps_step(step, keep_every)
    session.flush()
    steps = select(ResumePointRow.step).where(ResumePointRow.job_id == job.id)
    kept = resume_points_to_keep(session.scalars(steps).all(), keep_every)
    _delete(session, ResumePointRow.job_id == job.id, ResumePointRow.step.not_in(kept))


def resumed(session: Session, job: JobRow, event: RunEvent) -> None:
    """The run goes on from a step: what was told of later ones is done, and told, again."""
    step = event.data.get("step")
    if not isinstance(step, int):
        return
    events.forget_steps_after(session, job.id, step)
    samples.forget_steps_after(session, job.id, step)
    job.step = step
    session.flush()
    # It had its reasons not to take a newer one: nobody is offered that again.
    _delete(session, ResumePointRow.job_id == job.id, ResumePointRow.step > step)


def of_claim(session: Session, job: JobRow) -> tuple[list[ResumePoint], bool]:
    """What the run can go on from, newest first, and whether that was made with something else."""
    own = session.scalars(
        select(ResumePointRow)
        .where(ResumePointRow.job_id == job.id)
        .order_by(ResumePointRow.step.desc())
    ).all()
    if own or job.forked_from is None:
        return [_to_wire(row) for row in own], False
    parents = session.get(ResumePointRow, (job.forked_from, job.forked_step))
    return [_to_wire(parents)] if parents else [], job_fork.has_changed(session, job)


def find_file(session: Session, job: JobRow, sha256: str) -> StoredFile:
    """A file of what the job can go on from."""
    points, _ = of_claim(session, job)
    for point in points:
        for file in point.files:
            if file.sha256 == sha256:
                return file
    # Not 404, which tells a worker that the job is not its own any more.
    raise BadRequest(
        ErrorCode.NOT_FOUND, f"no resume point of job {job.id} has a file with sha256 {sha256}"
    )


def drop_unneeded(session: Session) -> None:
    """Those of jobs that have succeeded, but for what the recipe keeps. Their content goes with
    the janitor's next sweep."""
    succeeded = select(JobRow.id).where(JobRow.state == JobState.SUCCEEDED)
    _delete(session, ResumePointRow.job_id.in_(succeeded), ResumePointRow.stays.is_(False))


def _delete(session: Session, *which: ColumnElement[bool]) -> None:
    """Those, but for what a fork has not begun to train from."""
    fork = aliased(JobRow)
    needed = exists().where(
        and_(
            fork.forked_from == ResumePointRow.job_id,
            fork.forked_step == ResumePointRow.step,
            fork.finished_at.is_(None),
        )
    )
    session.execute(
        delete(ResumePointRow).where(*which, ~needed),
        execution_options={"synchronize_session": "fetch"},
    )


def _to_wire(row: ResumePointRow) -> ResumePoint:
    return ResumePoint(step=row.step, files=[StoredFile.model_validate(file) for file in row.files])
