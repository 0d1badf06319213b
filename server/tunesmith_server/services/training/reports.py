"""Run reports: one per attempt, received with a worker's heartbeat."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from tunesmith_schema import AttemptSummary, ErrorCode, JobEvaluation, JobReport, RunReport
from tunesmith_schema.documents import DOCUMENT_VERSION, VERSION_FIELD, upgraded_file
from tunesmith_server.core.errors import NotFound, ServiceError
from tunesmith_server.models import JobRow, ReportRow

from ..results import job_health
from .jobs import HELD


def store(session: Session, job: JobRow, report: RunReport) -> None:
    """Replace the report of the current attempt. The caller has checked the fencing token."""
    report = report.model_copy(update={"attempt": job.attempt})
    if report.evaluation is not None:
        job.evaluation = report.evaluation.summary().model_dump(mode="json")
    if (peak := _predicted_peak(report)) is not None:
        job.needs_bytes = max(job.needs_bytes or 0, peak)
    session.merge(
        ReportRow(
            job_id=job.id,
            attempt=job.attempt,
            updated_at=time.time(),
            content={**report.model_dump(mode="json"), VERSION_FIELD: DOCUMENT_VERSION},
        )
    )


def _predicted_peak(report: RunReport) -> int | None:
    """Return the smallest peak memory in bytes that the report predicts, over the chosen memory
    plan and its alternatives. A later attempt may choose another memory plan, but needs at least as
    much memory as the smallest peak."""
    plans = [choice.figures for choice in report.choices if choice.name == "memory_plan"]
    peaks: list[int] = []
    for plan in plans:
        alternatives = plan.get("alternatives")
        others = alternatives if isinstance(alternatives, list) else []
        figures = [plan, *(one for one in others if isinstance(one, dict))]
        found = [one.get("predicted_peak_bytes") for one in figures]
        peaks += [peak for peak in found if isinstance(peak, int) and peak > 0]
    return min(peaks, default=None)


def retrieve(session: Session, job: JobRow, attempt: int | None) -> JobReport:
    """Return the report of `attempt`; if `attempt` is None, return the newest report."""
    rows = session.scalars(
        select(ReportRow).where(ReportRow.job_id == job.id).order_by(ReportRow.attempt)
    ).all()
    matching = [row for row in rows if attempt is None or row.attempt == attempt]
    if not matching:
        raise _no_report(job, [row.attempt for row in rows], attempt)
    row = matching[-1]
    return _report(job, row, [other for other in rows if other.attempt < row.attempt])


def _report(job: JobRow, row: ReportRow, earlier: Iterable[ReportRow]) -> JobReport:
    summaries = [_summary(other) for other in earlier]
    try:
        return JobReport.model_validate(
            {
                **_content(row),
                "job_id": job.id,
                "live": job.state in HELD and row.attempt == job.attempt,
                "updated_at": int(row.updated_at),
                "health": job_health.stored(job.health),
                "earlier_attempts": [summary for summary in summaries if summary is not None],
            }
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(f"report of attempt {row.attempt}", error) from error


def newest(session: Session, jobs: Collection[JobRow]) -> dict[str, JobReport]:
    """Return the newest report of each job, with an empty `earlier_attempts`. A job is left out if
    it has no report, or if this release cannot read the report."""
    by_id = {job.id: job for job in jobs}
    other = aliased(ReportRow)
    last = select(func.max(other.attempt)).where(other.job_id == ReportRow.job_id)
    rows = session.scalars(
        select(ReportRow).where(
            ReportRow.job_id.in_(by_id), ReportRow.attempt == last.scalar_subquery()
        )
    )
    found = {}
    for row in rows:
        with suppress(ServiceError):
            found[row.job_id] = _report(by_id[row.job_id], row, [])
    return found


def retrieve_evaluation(session: Session, job: JobRow) -> JobEvaluation:
    """Return the evaluation of the newest attempt that has an evaluation."""
    rows = session.scalars(
        select(ReportRow).where(ReportRow.job_id == job.id).order_by(ReportRow.attempt.desc())
    )
    reason = None
    for row in rows:
        try:
            reason = reason or row.content.get("no_evaluation")
            if evaluation := row.content.get("evaluation"):
                return JobEvaluation.model_validate(
                    {**evaluation, "job_id": job.id, "attempt": row.attempt}
                )
        except (ValueError, TypeError, AttributeError) as error:
            raise _unreadable(f"evaluation of attempt {row.attempt}", error) from error
    raise NotFound(
        ErrorCode.NO_EVALUATION,
        f"job {job.id!r} has no evaluation" + (f": {reason}" if reason else ""),
        hint="a job evaluates its result after training, unless recipe.evaluate is false; its "
        "events give the reason of a failed evaluation",
    )


def _unreadable(what: str, error: Exception) -> NotFound:
    return NotFound(
        ErrorCode.UNREADABLE,
        f"this release cannot read the {what}: {error}"[:2000],
        hint="another release wrote the report: install that release",
    )


def _content(row: ReportRow) -> dict[str, Any]:
    content: dict[str, Any] = upgraded_file(row.content)
    return {name: value for name, value in content.items() if name != VERSION_FIELD}


def _summary(row: ReportRow) -> AttemptSummary | None:
    """Return the summary of an attempt, or None if its report cannot be read."""
    try:
        return AttemptSummary.model_validate(
            {name: row.content.get(name) for name in AttemptSummary.model_fields}
        )
    except (ValueError, AttributeError):
        return None


def _no_report(job: JobRow, attempts: list[int], attempt: int | None) -> NotFound:
    if attempts:
        return NotFound(
            ErrorCode.NO_REPORT,
            f"attempt {attempt} of job {job.id!r} has no report",
            param="attempt",
            hint=f"attempts with a report: {', '.join(map(str, attempts))}",
        )
    return NotFound(
        ErrorCode.NO_REPORT,
        f"job {job.id!r} has no report: it is {job.state}, and no worker has sent one",
        hint="repeat the request once the job is running",
    )
