"""Run reports: stored with a worker's heartbeat, one an attempt, read whole."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import AttemptSummary, ErrorCode, JobReport, RunReport
from tunesmith_schema.renames import current_names
from tunesmith_server.core.errors import NotFound
from tunesmith_server.models import JobRow, ReportRow

from .jobs import HELD


def store(session: Session, job: JobRow, report: RunReport) -> None:
    """Replace what this attempt's worker said before. `job` is held by its fence."""
    report = report.model_copy(update={"attempt": job.attempt})
    session.merge(
        ReportRow(
            job_id=job.id,
            attempt=job.attempt,
            updated_at=time.time(),
            content=report.model_dump(mode="json"),
        )
    )


def retrieve(session: Session, job: JobRow, attempt: int | None) -> JobReport:
    """The report of `attempt`; None: of the newest that has one."""
    rows = session.scalars(
        select(ReportRow).where(ReportRow.job_id == job.id).order_by(ReportRow.attempt)
    ).all()
    chosen = [row for row in rows if attempt is None or row.attempt == attempt]
    if not chosen:
        raise _none(job, [row.attempt for row in rows], attempt)
    row = chosen[-1]
    return JobReport.model_validate(
        {
            **current_names(row.content),
            "job_id": job.id,
            "live": job.state in HELD and row.attempt == job.attempt,
            "updated_at": int(row.updated_at),
            "earlier_attempts": [_summary(other) for other in rows if other.attempt < row.attempt],
        }
    )


def _summary(row: ReportRow) -> AttemptSummary:
    return AttemptSummary.model_validate(
        {name: row.content.get(name) for name in AttemptSummary.model_fields}
    )


def _none(job: JobRow, attempts: list[int], attempt: int | None) -> NotFound:
    if attempts:
        return NotFound(
            ErrorCode.NO_REPORT,
            f"attempt {attempt} of job {job.id!r} has no report",
            param="attempt",
            hint=f"those with one: {', '.join(map(str, attempts))}",
        )
    return NotFound(
        ErrorCode.NO_REPORT,
        f"job {job.id!r} has no report yet: it is {job.state}, and no worker has said anything",
        hint="ask again once it is running",
    )
