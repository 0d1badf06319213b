"""Comparison of jobs: results, settings that differ, and curves over a common axis."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, select
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
from tunesmith_server.core.errors import BadRequest, ServiceError
from tunesmith_server.models import EventRow, FileRow, JobRow

from ..results import curve_chunks, curves, job_health
from ..results.curve_chunks import Curve
from . import jobs, reports, stored_job

METRICS = ("train_loss", "valid_loss", "reward", "valid_reward")
MAX_COMPARED = 8
_TOKENS = "trained_tokens"
_ANCHORS = 200
"""Maximum number of events that are read to place a job's steps on the axis `hours`. Steps between
two events that were read are placed by interpolation."""

Anchors = Sequence[tuple[int, float]]
"""Steps and their positions on the axis, both ascending."""


def compare(
    session: Session,
    job_ids: Sequence[str],
    *,
    axis: Axis,
    points: int,
    first: int | None = None,
    last: int | None = None,
) -> JobComparison:
    """Compare jobs; each curve has at most `points` values. Curves and best values are limited to
    the steps from `first` to `last`. Raises BadRequest for a wrong number of jobs, and NotFound for
    an unknown job."""
    check_number(job_ids)
    known = session.scalars(select(JobRow).where(JobRow.id.in_(job_ids))).all()
    rows = [jobs.retrieve(session, job_id) for job_id in job_ids]  # read by `known` already
    names = {name for row in known for name in (row.training_file, row.validation_file) if name}
    files = {row.id: row for row in session.scalars(select(FileRow).where(FileRow.id.in_(names)))}
    wire = [jobs.to_wire(row) for row in rows]
    found = [_report(session, row) for row in rows]
    compared, aligned = [], dict[str, list[AlignedCurve]]()
    for row, report in zip(rows, found, strict=True):
        metrics = (*METRICS, _TOKENS) if axis == "tokens" else METRICS
        own = _curves(session, row, metrics, points, first, last)
        tokens = own.pop(_TOKENS, Curve())
        anchors = _anchors(session, row, axis, tokens)
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


def check_number(job_ids: Sequence[str]) -> None:
    """Raise BadRequest if these jobs are too few, too many, or not all different."""
    different = len(set(job_ids))
    if not 2 <= len(job_ids) <= MAX_COMPARED or different < len(job_ids):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"jobs: {len(job_ids)} ids, of which {different} are different",
            param="jobs",
            hint=f"name 2 to {MAX_COMPARED} different jobs, separated by commas",
        )


def _report(session: Session, row: JobRow) -> JobReport | None:
    """Return the newest report; None if there is none, or if this release cannot read it."""
    try:
        return reports.retrieve(session, row, None)
    except ServiceError:
        return None


def _curves(
    session: Session,
    row: JobRow,
    metrics: Sequence[str],
    points: int,
    first: int | None,
    last: int | None,
) -> dict[str, Curve]:
    low, high = curve_chunks.ends(session, row.id)
    low = max(low, first or 0)
    high = max(low, high if last is None else min(high, last))
    width = curves.stretch(low, high, points)
    low, high = low // width * width, (high // width + 1) * width - 1
    return curve_chunks.read(session, row, metrics, low, high, width)


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
    known = [pair for pair in zip(curve.values, curve.steps, strict=True) if pair[0] == pair[0]]
    pick = max if name.endswith("reward") else min
    best = pick(known, key=lambda pair: pair[0], default=None)
    return MetricResult(
        last=last,
        best=None if best is None else curves.rounded(best[0]),
        best_step=None if best is None else best[1],
    )


def _aligned(job_id: str, curve: Curve, anchors: Anchors | None) -> AlignedCurve | None:
    if anchors is None:
        x = [float(step) for step in curve.steps]
    elif anchors:
        x = [_between(anchors, step) for step in curve.steps]
    else:
        return None
    values = [curves.rounded(value) for value in curve.values]
    return AlignedCurve(job_id=job_id, x=x, values=values)


def _between(anchors: Anchors, step: int) -> float:
    index = bisect_left(anchors, step, key=lambda anchor: anchor[0])
    if index == len(anchors):
        return anchors[-1][1]
    after, at = anchors[index]
    if after == step or index == 0:
        return at
    before, start = anchors[index - 1]
    return float(f"{start + (at - start) * (step - before) / (after - before):.6g}")


def _anchors(session: Session, row: JobRow, axis: Axis, tokens: Curve) -> Anchors | None:
    if axis == "step":
        return None
    if axis == "tokens":
        pairs = zip(tokens.steps, tokens.values, strict=True)
        return [(step, value) for step, value in pairs if value == value]
    return _hours(session, row)


def _hours(session: Session, row: JobRow) -> Anchors:
    """Return some steps, each with the hours from the job's first start to this step, computed from
    the times of events."""
    if row.started_at is None:
        return []
    numbers = sorted({1 + row.last_seq * n // _ANCHORS for n in range(_ANCHORS)} | {row.last_seq})
    events = session.execute(
        select(EventRow.created_at, readable_object(EventRow.data)["step"])
        .where(EventRow.job_id == row.id, EventRow.kind == EventKind.METRICS)
        # Literals, because 200 parameters take longer than the rest of the query.
        .where(EventRow.seq.in_(bindparam("seq", numbers, expanding=True, literal_execute=True)))
        .order_by(EventRow.seq)
    )
    anchors: list[tuple[int, float]] = []
    for created_at, step in events:
        if isinstance(step, int):
            while anchors and anchors[-1][0] >= step:  # an attempt repeated these steps
                anchors.pop()
            anchors.append((step, max(0.0, (created_at - row.started_at) / 3600)))
    return anchors
