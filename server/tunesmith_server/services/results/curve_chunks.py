"""Metrics in packed form: chunks of 512 steps, written in the transaction that stores the metrics.

All metrics of steps below `jobs.sealed_step` are in chunks; all other metrics are read from
`job_metrics`. `job_metrics` keeps every value, so a chunk can always be made again. Void chunks
have the metrics of steps that a later attempt repeated.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import and_, delete, func, insert, select, union_all
from sqlalchemy.orm import Session

from tunesmith_server.models import CurveRow, JobRow, MetricRow

CHUNK = 512
"""Number of steps in a chunk."""
BLOCK = 32
"""Number of steps in a block. The column `coarse` of a chunk stores the minimum and the maximum of
each block."""
_CHUNKS_AT_A_TIME = 4
"""Maximum number of chunks that are packed when one step is stored. Several chunks can be complete
if an earlier release stored the first steps of the job."""

_STORED = MetricRow.job_id == JobRow.id
_VOID = and_(CurveRow.job_id == JobRow.id, CurveRow.void_by > 0)
# SQLite reads an end from the index only if a query asks for one end.
_ENDS = select(
    JobRow.id,
    select(func.min(MetricRow.step)).where(_STORED).scalar_subquery(),
    select(func.max(MetricRow.step)).where(_STORED).scalar_subquery(),
    select(func.min(CurveRow.start)).where(_VOID).scalar_subquery(),
    select(func.max(CurveRow.start)).where(_VOID).scalar_subquery(),
)
_METRICS: Any = MetricRow.__table__  # Any: a FromClause in SQLAlchemy's types
_CURVES: Any = CurveRow.__table__
_ROWS_AT_A_TIME = 200
"""Maximum number of rows of `job_metrics` that are in memory at a time. Many more rows would
survive Python's small garbage collections, and so make full garbage collections more frequent."""

JobCurves = dict[str, dict[str, "Curve"]]
"""Curves by job and metric."""


@dataclass(frozen=True)
class Curve:
    """Values of one metric, in the order of the steps; a value may be NaN."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def thinned(self, width: int) -> Curve:
        """Return the minimum, the maximum and the first NaN of each interval of `width` steps.
        Intervals start at multiples of `width`."""
        if width <= 1:
            return self
        steps, values = self.steps, self.values
        has_nan = math.isnan(sum(values))  # or infinities of both signs, which only costs time
        thin = Curve()
        first, count = 0, len(steps)
        while first < count:
            end = bisect_left(steps, (steps[first] // width + 1) * width, first)
            for index in _picked(values[first:end], has_nan):
                thin.steps.append(steps[first + index])
                thin.values.append(values[first + index])
            first = end
        return thin

    def between(self, low: int, high: int) -> Curve:
        """Return the values of the steps from `low` to `high`, both included."""
        first, end = bisect_left(self.steps, low), bisect_left(self.steps, high + 1)
        return Curve(self.steps[first:end], self.values[first:end])


@dataclass(frozen=True, kw_only=True)
class Span:
    """Range of one job's steps for which curves are read."""

    job_id: str
    sealed_step: int
    low: int
    high: int
    """Last step of the span."""
    width: int
    """Number of steps in an interval; a curve has the minimum and the maximum of each interval."""

    @classmethod
    def around(cls, job: JobRow, low: int, high: int, width: int) -> Span:
        """Return the smallest span of whole intervals that contains the steps from `low` to
        `high`."""
        return cls(
            job_id=job.id,
            sealed_step=job.sealed_step,
            low=low // width * width,
            high=(high // width + 1) * width - 1,
            width=width,
        )


def _picked(values: list[float], has_nan: bool) -> Sequence[int]:
    if len(values) == 1:
        return (0,)
    if not has_nan:
        low, high = values.index(min(values)), values.index(max(values))
        return (low,) if low == high else (low, high) if low < high else (high, low)
    known = [value for value in values if value == value]
    picked = {values.index(extreme) for extreme in (min(known), max(known))} if known else set()
    if len(known) < len(values):
        picked.add(next(index for index, value in enumerate(values) if value != value))
    return sorted(picked)


def note(session: Session, job: JobRow, step: int) -> None:
    """Pack the chunks that are complete now that `step` is stored. The caller has locked `job`. If
    `step` is in a packed chunk, this chunk and all later chunks are deleted."""
    if step < job.sealed_step:
        _unseal(session, job, step)
    elif step >= job.sealed_step + CHUNK:
        seal(session, job, step, most=_CHUNKS_AT_A_TIME)


def seal(session: Session, job: JobRow, step: int, most: int) -> None:
    """Pack up to `most` chunks that end at or before `step`. The caller has locked `job`."""
    limit = step // CHUNK * CHUNK
    for _ in range(most):
        start = _first_chunk(session, job.id, job.sealed_step)
        if start is None or start + CHUNK > limit:
            job.sealed_step = limit  # no metrics below `limit` are left
            return
        _write(session, job.id, 0, start, start)
        job.sealed_step = start + CHUNK


def make_void(session: Session, job: JobRow, step: int) -> None:
    """Copy the metrics after `step` into void chunks, because the current attempt repeats these
    steps. Afterwards, the caller deletes the copied metrics."""
    session.execute(
        delete(CurveRow).where(CurveRow.job_id == job.id, CurveRow.void_by == job.attempt)
    )
    start = _first_chunk(session, job.id, step + 1)
    while start is not None:
        _write(session, job.id, job.attempt, start, max(start, step + 1))
        start = _first_chunk(session, job.id, start + CHUNK)
    if step + 1 < job.sealed_step:
        _unseal(session, job, step + 1)


def ends(session: Session, job_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the first and the last step with metrics of each job. A void chunk counts as if all
    its steps had metrics, so the range may be larger than necessary.
    """
    found = dict.fromkeys(job_ids, (0, 0))
    for job_id, first, last, void_first, void_last in session.execute(
        _ENDS.where(JobRow.id.in_(job_ids))
    ):
        firsts = [step for step in (first, void_first) if step is not None]
        lasts = [last or 0, 0 if void_last is None else void_last + CHUNK - 1]
        found[job_id] = min(firsts, default=0), max(lasts)
    return found


def read(session: Session, spans: Sequence[Span], names: Sequence[str] | None) -> JobCurves:
    """Return the curves of the metrics `names` (None: all metrics) in each span. A curve has the
    minimum and the maximum of each interval, and the value of the job's last step if the span
    contains this step."""
    sealed = [replace(span, high=min(span.high, span.sealed_step - 1)) for span in spans]
    rest = [replace(span, low=max(span.low, span.sealed_step)) for span in spans]
    found = _packed(session, 0, names, sealed)
    for job_id, curves in _stored(session, rest, names).items():
        for name, steps in curves.items():
            curve = found.setdefault(job_id, {}).setdefault(name, Curve())
            curve.steps.extend(steps.steps)
            curve.values.extend(steps.values)
    return {
        span.job_id: {
            name: _with_last(curve, span.width)
            for name, curve in sorted(found.get(span.job_id, {}).items())
        }
        for span in spans
    }


def _with_last(curve: Curve, width: int) -> Curve:
    """Return the thinned `curve`, but keep its last value. Values from packed chunks may already be
    thinned, but packed chunks never contain the job's last step."""
    thin = curve.thinned(width)
    if curve.steps and thin.steps[-1] != curve.steps[-1]:
        thin.steps.append(curve.steps[-1])
        thin.values.append(curve.values[-1])
    return thin


def read_void(
    session: Session, span: Span, names: Sequence[str] | None
) -> dict[int, dict[str, Curve]]:
    """Return the curves in void chunks, keyed by the number of the attempt that repeated their
    steps."""
    attempts = session.scalars(
        select(CurveRow.void_by)
        .where(CurveRow.job_id == span.job_id, CurveRow.void_by > 0)
        .distinct()
        .order_by(CurveRow.void_by)
    ).all()
    found = {
        number: _packed(session, number, names, [span]).get(span.job_id, {}) for number in attempts
    }
    return {
        number: {name: curve.thinned(span.width) for name, curve in sorted(curves.items())}
        for number, curves in found.items()
        if curves
    }


def _packed(
    session: Session, void_by: int, names: Sequence[str] | None, spans: Iterable[Span]
) -> JobCurves:
    by_job = {span.job_id: span for span in spans if span.low <= span.high}
    curves: JobCurves = {}
    columns = _CURVES.c  # not of the mapped class: rows of a table are read with less CPU time
    for column in (columns.coarse, columns.fine):
        is_coarse = column is columns.coarse
        some = [span for span in by_job.values() if (span.width % BLOCK == 0) is is_coarse]
        if not some:
            continue
        low, high = min(span.low for span in some), max(span.high for span in some)
        query = (
            select(columns.job_id, columns.name, column)
            .where(columns.job_id.in_([span.job_id for span in some]))
            .where(columns.void_by == void_by)
            .where(columns.start.between(low // CHUNK * CHUNK, high))
            .order_by(columns.job_id, columns.name, columns.start)
        )
        if names is not None:
            query = query.where(columns.name.in_(names))
        for (job_id, name), rows in groupby(session.execute(query), key=itemgetter(0, 1)):
            curve = _unpacked(packed for _, _, packed in rows)
            span = by_job[job_id]
            if (cut := curve.between(span.low, span.high)).steps:
                curves.setdefault(job_id, {})[name] = cut
    return curves


def _stored(session: Session, spans: Iterable[Span], names: Sequence[str] | None) -> JobCurves:
    """Return the curves from `job_metrics`, with the value of each step."""
    columns = _METRICS.c
    one = select(columns.job_id, columns.name, columns.step, columns.value)
    if names is not None:
        one = one.where(columns.name.in_(names))
    parts = [
        one.where(columns.job_id == span.job_id, columns.step.between(span.low, span.high))
        for span in spans
        if span.low <= span.high
    ]
    if not parts:
        return {}
    # Not one condition with OR, for which PostgreSQL may read the whole table.
    query = union_all(*parts)
    query = query.order_by(*(query.selected_columns[name] for name in ("job_id", "name", "step")))
    curves: JobCurves = {}
    for rows in session.execute(query).partitions(_ROWS_AT_A_TIME):
        for job_id, name, step, value in rows:
            own = curves.get(job_id) or curves.setdefault(job_id, {})
            curve = own.get(name) or own.setdefault(name, Curve())
            curve.steps.append(step)
            curve.values.append(math.nan if value is None else value)
    return curves


def _first_chunk(session: Session, job_id: str, step: int) -> int | None:
    first = session.scalar(
        select(func.min(MetricRow.step)).where(MetricRow.job_id == job_id, MetricRow.step >= step)
    )
    return None if first is None else first // CHUNK * CHUNK


def _write(session: Session, job_id: str, void_by: int, start: int, low: int) -> None:
    span = Span(job_id=job_id, sealed_step=start, low=low, high=start + CHUNK - 1, width=1)
    rows = list(_rows(_stored(session, [span], None).get(job_id, {})))
    if rows:
        shared = {"job_id": job_id, "void_by": void_by, "start": start}
        session.execute(insert(CurveRow), [shared | row for row in rows])


def _rows(curves: dict[str, Curve]) -> Iterator[dict[str, str | bytes]]:
    for name, curve in curves.items():
        yield {"name": name, "coarse": _pack(curve.thinned(BLOCK)), "fine": _pack(curve)}


def _unseal(session: Session, job: JobRow, step: int) -> None:
    start = step // CHUNK * CHUNK
    session.execute(
        delete(CurveRow).where(
            CurveRow.job_id == job.id, CurveRow.void_by == 0, CurveRow.start >= start
        )
    )
    job.sealed_step = start


def _pack(curve: Curve) -> bytes:
    """Return the steps as 32-bit integers, then the values as 64-bit floats, little-endian."""
    count = len(curve.steps)
    return struct.pack(f"<{count}i{count}d", *curve.steps, *curve.values)


def _unpacked(chunks: Iterable[bytes]) -> Curve:
    """Join packed chunks. `array` needs less CPU time than `struct.unpack`."""
    steps, values = array("i"), array("d")
    for packed in chunks:
        end = len(packed) // 12 * 4
        steps.frombytes(packed[:end])
        values.frombytes(packed[end:])
    if sys.byteorder == "big":
        steps.byteswap()
        values.byteswap()
    return Curve(steps.tolist(), values.tolist())
