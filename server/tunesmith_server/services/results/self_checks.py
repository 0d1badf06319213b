"""Self-check of a run, read from the event that the trainer wrote after the checks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, EventKind, SelfCheck
from tunesmith_schema.lineage import SelfCheckItem
from tunesmith_server.core.errors import NotFound
from tunesmith_server.models import EventRow, JobRow
from tunesmith_server.models.event import NO_METRICS

_START = "self-check: "


def retrieve(session: Session, job: JobRow, attempt: int | None) -> SelfCheck:
    """Return the self-check of `attempt`, by default of the newest attempt that has a
    self-check."""
    query = select(EventRow).where(
        EventRow.job_id == job.id,
        EventRow.kind == EventKind.MESSAGE,
        NO_METRICS,
        EventRow.message.startswith(_START, autoescape=True),
        cast(EventRow.data, Text).contains('"checks"', autoescape=True),
    )
    if attempt is not None:
        query = query.where(EventRow.attempt == attempt)
    row = session.scalar(query.order_by(EventRow.seq.desc()).limit(1))
    if row is None:
        which = "" if attempt is None else f" in attempt {attempt}"
        raise NotFound(
            ErrorCode.NO_REPORT,
            f"job {job.id!r} has no self-check{which}",
            hint="the check runs before the first step, unless recipe.self_check is false",
        )
    data: dict[str, Any] = row.data  # Any: JSON
    checks = data.get("checks")
    found = checks if isinstance(checks, dict) else {}
    return SelfCheck(
        job_id=job.id,
        attempt=row.attempt,
        created_at=int(row.created_at),
        message=row.message,
        seconds=float(data.get("seconds") or 0),
        checks=[
            SelfCheckItem(
                check=name,
                state=str(outcome.get("state")),
                detail=str(outcome.get("detail") or ""),
            )
            for name, outcome in found.items()
            if isinstance(outcome, dict)
        ],
    )
