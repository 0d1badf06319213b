"""Update of jobs that an earlier release stored. In each round of the janitor, some of the jobs get
the data that the earlier release did not store: health, curve for lists, and packed metrics
(curve_chunks.py)."""

from __future__ import annotations

import logging

from sqlalchemy import ColumnElement, and_, exists, null, or_, select, tuple_
from sqlalchemy.orm import Session

from tunesmith_server.models import JobRow, MetricRow

from ..results import curve_chunks, job_health
from ..results.faults import is_outage

log = logging.getLogger(__name__)

MAX_JOBS = 50
"""Maximum number of jobs in a round."""
MAX_CHUNKS = 8
"""Maximum number of chunks of metrics that a round packs, so that other writers wait only a
fraction of a second."""


class OlderJobs:
    """One pass over the jobs, newest first. A job that is locked, or whose update fails, is
    skipped."""

    def __init__(self) -> None:
        self.is_done = False
        self._after: tuple[float, str] | None = None

    def round(self, session: Session) -> None:
        """Update the next jobs; `is_done` is True after the last job."""
        query = select(JobRow).where(_is_incomplete())
        if self._after is not None:
            query = query.where(tuple_(JobRow.created_at, JobRow.id) < self._after)
        newest_first = query.order_by(JobRow.created_at.desc(), JobRow.id.desc())
        jobs = session.scalars(
            newest_first.limit(MAX_JOBS).with_for_update(skip_locked=True, of=JobRow)
        ).all()
        chunks = MAX_CHUNKS
        for job in jobs:
            if job.health is None or job.curve is None:
                job_health.derive(session, job)
            chunks -= _seal(session, job, chunks)
            if chunks <= 0 and _is_unpacked(job):
                return  # the next round continues with this job
            self._after = (job.created_at, job.id)
        self.is_done = len(jobs) < MAX_JOBS


def _is_incomplete() -> ColumnElement[bool]:
    has_metrics = exists().where(MetricRow.job_id == JobRow.id)
    underived = or_(JobRow.health.is_(null()), JobRow.curve.is_(null()))
    unpacked = and_(
        JobRow.finished_at.is_not(None), JobRow.step >= JobRow.sealed_step + curve_chunks.CHUNK
    )
    return or_(and_(underived, has_metrics), unpacked)


def _is_unpacked(job: JobRow) -> bool:
    return job.finished_at is not None and job.step >= job.sealed_step + curve_chunks.CHUNK


def _seal(session: Session, job: JobRow, most: int) -> int:
    """Pack at most `most` chunks of an ended job's metrics. Return the number of chunks; chunks
    without metrics count too."""
    if not _is_unpacked(job):
        return 0
    before = job.sealed_step
    try:
        with session.begin_nested():
            curve_chunks.seal(session, job, job.step, most=max(1, most))
    except Exception as error:
        if is_outage(error):
            raise
        log.warning("the metrics of %s cannot be packed: %r", job.id, error)
        session.refresh(job)
        return 0
    return min(most, (job.sealed_step - before) // curve_chunks.CHUNK)
