"""Health of jobs, derived from the stored metrics and kept in the job's row, so that lists read no
metrics."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from tunesmith_schema import JobHealth
from tunesmith_server.models import JobRow, MetricRow

from . import health_rules
from .faults import is_outage
from .health_rules import Point

log = logging.getLogger(__name__)

MAX_POINTS = 200
"""Maximum number of points of a curve; each point is the mean of as many logged steps as
necessary."""
GROWTH = 1.05
"""Factor by which a job's number of steps must grow before its health is derived again. With this
factor, the cost of all derivations of a job grows linearly with the number of steps."""
MAX_LISTED = 64
"""Maximum number of points of the curve in a list of jobs."""
_LARGEST = 1e100
"""Largest value that is averaged. Larger values are replaced by this value, because PostgreSQL
cannot compute their mean without an overflow error."""


def update(session: Session, job: JobRow) -> None:
    """Derive the health of a job that this transaction has locked, if it has enough new steps."""
    known = stored(job.health)
    if known is None or not known.step <= job.step < known.step * GROWTH:
        derive(session, job)


def derive(session: Session, job: JobRow) -> None:
    """Derive the health of a job that this transaction has locked. If the derivation fails, the job
    keeps its previous health, and the caller's transaction continues."""
    try:
        with session.begin_nested():
            found = curves(session, job.id)
            job.health = health_rules.judge(found).model_dump(mode="json")
            job.curve = _small_curve(job, found)
    except Exception as error:
        if is_outage(error):
            raise
        log.warning("the health of %s cannot be derived: %r", job.id, error)


def stored(document: Any) -> JobHealth | None:  # Any: JSON
    """Return the health in a job's row; None if the row has none, or if this release cannot read
    it."""
    try:
        return None if document is None else JobHealth.model_validate(document)
    except ValueError:
        return None


def _small_curve(job: JobRow, found: dict[str, list[Point]]) -> dict[str, Any]:
    """Return a `JobCurve` of the reward for a reinforcement job, else of the training loss. The
    curve has at most MAX_LISTED points; each point is the mean of consecutive values."""
    name = "reward" if job.method_name == "reinforcement" else "train_loss"
    known = [(point.step, point.value) for point in found.get(name, []) if point.value is not None]
    width = -(-len(known) // MAX_LISTED) or 1
    parts = [known[first : first + width] for first in range(0, len(known), width)]
    return {
        "name": name,
        "steps": [part[-1][0] for part in parts],
        "values": [float(f"{sum(v for _, v in part) / len(part):.6g}") for part in parts],
    }


def curves(session: Session, job_id: str) -> dict[str, list[Point]]:
    """Return the metrics that the rules use, with at most `MAX_POINTS` points each."""
    of_job = (MetricRow.job_id == job_id, MetricRow.name.in_(health_rules.METRICS))
    last = session.scalar(select(func.max(MetricRow.step)).where(MetricRow.job_id == job_id)) or 0
    value = case(
        (MetricRow.value > _LARGEST, _LARGEST),
        (MetricRow.value < -_LARGEST, -_LARGEST),
        else_=MetricRow.value,
    )
    bucket = (MetricRow.step // (last // MAX_POINTS + 1)).label("bucket")
    rows = session.execute(
        select(
            MetricRow.name,
            func.max(MetricRow.step),
            func.avg(value),
            func.count() - func.count(MetricRow.value),
        )
        .where(*of_job)
        .group_by(MetricRow.name, bucket)
        .order_by(MetricRow.name, bucket)
    )
    points: dict[str, list[Point]] = {}
    for name, step, mean, missing in rows:
        points.setdefault(name, []).append(Point(step, mean, missing))
    return points
