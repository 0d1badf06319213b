"""Comparison of jobs: results, settings that differ, and curves over a common axis."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, false, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, EventKind, JobReport
from tunesmith_schema.comparison import (
    AlignedCurve,
    Axis,
    ComparedData,
    ComparedJob,
    JobComparison,
    MetricResult,
)
from tunesmith_schema.settings_diff import (
    automatic_values,
    differing,
    differing_settings,
    environment_values,
)
from tunesmith_server.core.database import readable_object
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.models import EventRow, FileRow, JobRow
from tunesmith_server.scheduling import usage

from ..results import curve_chunks, curves, job_health
from ..results.curve_chunks import Curve, Span
from . import jobs, reports, stored_job

METRICS = ("train_loss", "valid_loss", "reward", "valid_reward")
MAX_COMPARED = 8
_TOKENS = "trained_tokens"
_ANCHORS = 200
"""Maximum number of events that are read to place a job's steps on the axis `hours`. Steps between
two events that were read are placed by interpolation."""

Anchors = Sequence[tuple[int, float]]
"""Pairs of a step and its position on the x-axis, both ascending."""


def find(session: Session, job_ids: Sequence[str]) -> list[JobRow]:
    """Return the jobs to compare, in the order of `job_ids`. Raises BadRequest for a wrong number
    of jobs, and NotFound for an unknown job."""
    _check_number(job_ids)
    known = jobs.find(session, job_ids)
    return [known.get(job_id) or jobs.retrieve(session, job_id) for job_id in job_ids]


def compare(
    session: Session,
    rows: Sequence[JobRow],
    *,
    axis: Axis,
    points: int,
    first: int | None = None,
    last: int | None = None,
) -> JobComparison:
    """Compare jobs; each curve has at most `points` values. Curves and best values are limited to
    the steps from `first` to `last`. The number of queries does not depend on the number of
    jobs."""
    names = {name for row in rows for name in (row.training_file, row.validation_file) if name}
    files = {row.id: row for row in session.scalars(select(FileRow).where(FileRow.id.in_(names)))}
    now = usage.database_now(session)
    wire = [jobs.to_wire(row, now) for row in rows]
    reported = reports.newest(session, rows)
    found = [reported.get(row.id) for row in rows]
    metrics = (*METRICS, _TOKENS) if axis == "tokens" else METRICS
    known = curve_chunks.read(session, _spans(session, rows, points, first, last), metrics)
    hours = _hours(session, rows) if axis == "hours" else {}
    compared, aligned = [], dict[str, list[AlignedCurve]]()
    for row, report in zip(rows, found, strict=True):
        own = known[row.id]
        tokens = own.pop(_TOKENS, Curve())
        anchors = None if axis == "step" else hours.get(row.id, _anchors(tokens))
        compared.append(_job(row, report, own, files))
        for name, curve in own.items():
            if line := _aligned(row.id, curve, anchors):
                aligned.setdefault(name, []).append(line)
    return JobComparison(
        jobs=compared,
        settings=differing_settings(wire),
        automatic=differing([automatic_values(report) for report in found]),
        environment=differing([environment_values(report) for report in found]),
        axis=axis,
        curves=aligned,
    )


def _check_number(job_ids: Sequence[str]) -> None:
    different = len(set(job_ids))
    if not 2 <= len(job_ids) <= MAX_COMPARED or different < len(job_ids):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"jobs: {len(job_ids)} ids, of which {different} are different",
            param="jobs",
            hint=f"name 2 to {MAX_COMPARED} different jobs, separated by commas",
        )


def _spans(
    session: Session, rows: Sequence[JobRow], points: int, first: int | None, last: int | None
) -> list[Span]:
    ends = curve_chunks.ends(session, [row.id for row in rows])
    spans = []
    for row in rows:
        low, high = ends[row.id]
        low = max(low, first or 0)
        high = max(low, high if last is None else min(high, last))
        spans.append(curves.span_of(row, low, high, points))
    return spans


def _job(
    row: JobRow, report: JobReport | None, known: dict[str, Curve], files: Mapping[str, FileRow]
) -> ComparedJob:
    return ComparedJob(
        id=row.id,
        name=row.name,
        suffix=row.suffix,
        state=row.state,
        step=row.step,
        device=report.device if report else None,
        health=job_health.stored(row.health),
        evaluation=stored_job.evaluation(row.evaluation),
        training_file=_data(files, row.training_file),
        validation_file=_data(files, row.validation_file) if row.validation_file else None,
        results={
            name: _result(name, known[name], (row.last_metrics or {}).get(name))
            for name in METRICS
            if name in known
        },
    )


def _data(files: Mapping[str, FileRow], file_id: str) -> ComparedData:
    file = files.get(file_id)
    if file is None:
        return ComparedData(id=file_id)
    rows = file.validation.get("rows") if isinstance(file.validation, dict) else None
    return ComparedData(
        id=file_id,
        filename=file.filename,
        sha256=file.sha256,
        rows=rows if isinstance(rows, int) else None,
    )


def _result(name: str, curve: Curve, last: float | None) -> MetricResult:
    """Return the last and the best value of a curve. A thinned curve still has its minimum and its
    maximum, so the best value is exact."""
    pick = max if name.endswith("reward") else min
    best = pick((value for value in curve.values if value == value), default=None)
    return MetricResult(
        last=last,
        best=None if best is None else curves.rounded(best),
        best_step=None if best is None else curve.steps[curve.values.index(best)],
    )


def _aligned(job_id: str, curve: Curve, anchors: Anchors | None) -> AlignedCurve | None:
    if anchors is None:
        x = [float(step) for step in curve.steps]
    elif anchors:
        steps = [step for step, _ in anchors]
        x = [_between(anchors, bisect_left(steps, step), step) for step in curve.steps]
    else:
        return None
    values = [curves.rounded(value) for value in curve.values]
    return AlignedCurve(job_id=job_id, x=x, values=values)


def _between(anchors: Anchors, index: int, step: int) -> float:
    """Return the position of a step on the x-axis, interpolated between two anchors. `index`: index
    of the first anchor that is not before the step."""
    if index == len(anchors):
        return anchors[-1][1]
    after, at = anchors[index]
    if after == step or index == 0:
        return at
    before, start = anchors[index - 1]
    return float(f"{start + (at - start) * (step - before) / (after - before):.6g}")


def _anchors(tokens: Curve) -> Anchors:
    pairs = zip(tokens.steps, tokens.values, strict=True)
    return [(step, value) for step, value in pairs if value == value]


def _hours(session: Session, rows: Sequence[JobRow]) -> dict[str, Anchors]:
    """Return some steps of each job, each with the hours since the job's first start. The hours are
    computed from the times of events."""
    started = {row.id: row.started_at for row in rows if row.started_at is not None}
    events = session.execute(
        select(EventRow.job_id, EventRow.created_at, readable_object(EventRow.data)["step"])
        .where(EventRow.kind == EventKind.METRICS)
        .where(or_(false(), *(_sampled(row) for row in rows if row.id in started)))
        .order_by(EventRow.job_id, EventRow.seq)
    )
    found: dict[str, list[tuple[int, float]]] = {row.id: [] for row in rows}
    for job_id, created_at, step in events:
        if isinstance(step, int):
            anchors = found[job_id]
            while anchors and anchors[-1][0] >= step:  # an attempt repeated these steps
                anchors.pop()
            anchors.append((step, max(0.0, (created_at - started[job_id]) / 3600)))
    return dict(found)


def _sampled(row: JobRow) -> ColumnElement[bool]:
    """Return the SQL condition that selects about `_ANCHORS` evenly spaced events of a job."""
    numbers = sorted({1 + row.last_seq * n // _ANCHORS for n in range(_ANCHORS)} | {row.last_seq})
    # Literals, because 200 parameters take longer than the rest of the query.
    known: Any = bindparam(None, numbers, expanding=True, literal_execute=True)  # Any: of a list
    return and_(EventRow.job_id == row.id, EventRow.seq.in_(known))
