"""Events, metrics and checkpoints of a job, stored in order and read in pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import JsonValue
from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tunesmith_schema import (
    Checkpoint,
    CheckpointMetrics,
    Event,
    EventKind,
    MetricPoint,
    RunEvent,
)
from tunesmith_server.models import CheckpointRow, EventRow, JobRow, MetricRow
from tunesmith_server.models.event import NO_INFO, NO_METRICS

from ..pages import PageBuilder, json_of, read_page
from ..paging import Order, number_in, unknown_cursor
from ..results import curve_chunks

MAX_METRICS = 500
"""Maximum number of metrics in an event."""
_ROWS_AT_A_TIME = 16
_NOT_METRICS = frozenset({"step", "total_steps"})
_SHOWN_METRICS = ("train_loss", "valid_loss", "reward", "valid_reward")


def add(
    session: Session,
    job: JobRow,
    message: str,
    *,
    kind: EventKind = EventKind.MESSAGE,
    level: str = "info",
    data: dict[str, JsonValue] | None = None,
    created_at: float | None = None,
) -> EventRow:
    """Append one event. The caller has locked `job` in this transaction, with an UPDATE that checks
    the fencing token or the state."""
    row = new(job, message, kind=kind, level=level, data=data, created_at=created_at)
    session.add(row)
    return row


def new(
    job: JobRow,
    message: str,
    *,
    kind: EventKind = EventKind.MESSAGE,
    level: str = "info",
    data: dict[str, JsonValue] | None = None,
    created_at: float | None = None,
) -> EventRow:
    """Return the next event of `job` with its number, without adding it to a database session."""
    job.last_seq += 1
    return EventRow(
        project_id=job.project_id,
        job_id=job.id,
        seq=job.last_seq,
        created_at=created_at or time.time(),
        attempt=job.attempt,
        kind=kind,
        level=level,
        message=message.replace("\0", "\ufffd"),  # PostgreSQL's text cannot hold NUL
        data=data or {},
    )


def store_metrics(session: Session, job: JobRow, event: RunEvent) -> None:
    """Insert or update the values of a METRICS event, and advance the job's step."""
    step = event.data.get("step")
    if not isinstance(step, int):
        return
    rows = [
        {"job_id": job.id, "step": step, "name": name[:64], "value": value}
        for name, value in event.data.items()
        if name not in _NOT_METRICS and (value is None or isinstance(value, int | float))
    ]
    if len(rows) > MAX_METRICS:
        raise ValueError(f"a step has at most {MAX_METRICS} metrics, got {len(rows)}")
    if any("\0" in name for name in event.data):
        raise ValueError("the name of a metric contains NUL")
    if rows:
        insert: Any = sqlite.insert  # Any: no common base class has on_conflict_do_update
        if session.get_bind().dialect.name == "postgresql":
            insert = postgresql.insert
        statement = insert(MetricRow)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["job_id", "step", "name"],
                set_={"value": statement.excluded.value},
            ),
            rows,
        )
    shown = {row["name"]: row["value"] for row in rows if row["name"] in _SHOWN_METRICS}
    if shown:
        known = job.last_metrics if isinstance(job.last_metrics, dict) else {}
        job.last_metrics = {**known, **shown}
    curve_chunks.note(session, job, step)
    job.step = max(job.step, step)
    total, tokens = event.data.get("total_steps"), event.data.get("trained_tokens")
    if isinstance(total, int):
        job.total_steps = total
    if isinstance(tokens, int):
        job.trained_tokens = tokens


def event_id(job_id: str, seq: int) -> str:
    return f"ftevent-{job_id.removeprefix('ftjob-')}-{seq}"


def seq_of(job_id: str, after: str) -> int:
    """Return the event number that an event id of this job contains."""
    head, _, text = after.rpartition("-")
    seq = number_in(text)
    if head != f"ftevent-{job_id.removeprefix('ftjob-')}" or seq is None:
        raise unknown_cursor(after, "event")
    return seq


def to_wire(row: EventRow) -> Event:
    """Return the event; if this release cannot read it, return a message in its place."""
    try:
        return _to_wire(row)
    except (ValueError, TypeError):
        data = row.data if isinstance(row.data, dict) else {}
        return Event(
            id=event_id(row.job_id, row.seq),
            created_at=int(row.created_at) if isinstance(row.created_at, float) else 0,
            level=row.level if row.level in ("info", "warn", "error") else "info",
            message=str(row.message),
            type="message",
            data={**data, "reason": "unreadable", "kind": str(row.kind)},
            kind=EventKind.MESSAGE,
            seq=row.seq,
            job_id=row.job_id,
        )


def _to_wire(row: EventRow) -> Event:
    return Event(
        id=event_id(row.job_id, row.seq),
        created_at=int(row.created_at),
        level=row.level,
        message=row.message,
        type="metrics" if row.kind == EventKind.METRICS else "message",
        data=row.data,
        kind=EventKind(row.kind),
        seq=row.seq,
        job_id=row.job_id,
    )


def list_events(
    session: Session,
    job_id: str,
    *,
    after: str | None,
    limit: int,
    order: Order,
    kinds: Sequence[EventKind] = (),
    levels: Sequence[str] = (),
    text: str | None = None,
) -> PageBuilder:
    """Return the events of these kinds and levels (empty: all) whose messages contain `text`,
    ignoring case."""
    query = select(EventRow).where(EventRow.job_id == job_id)
    if kinds:
        query = query.where(EventRow.kind.in_(kinds))
        if EventKind.METRICS not in kinds:
            query = query.where(NO_METRICS)
    if levels:
        query = query.where(EventRow.level.in_(levels))
        if "info" not in levels:
            query = query.where(NO_INFO)
    if text:
        query = query.where(EventRow.message.icontains(text, autoescape=True))
    return read_page(
        session,
        query,
        (EventRow.seq.expression,),
        after=(seq_of(job_id, after),) if after else None,
        limit=limit,
        order=order,
        key_of=lambda row: (row[0].seq,),
        items_of=lambda rows: ((event.id, json_of(event)) for event in _events(rows)),
    )


def _events(rows: Sequence[Any]) -> Iterator[Event]:  # Any: rows with one EventRow
    for (row,) in rows:
        yield to_wire(row)


def since(session: Session, job_id: str, seq: int) -> Iterator[Event]:
    """Yield the events after number `seq`, oldest first.

    Only `_ROWS_AT_A_TIME` rows are read in advance, because the caller may stop early.
    """
    with session.scalars(
        select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.seq > seq)
        .order_by(EventRow.seq)
        .execution_options(yield_per=_ROWS_AT_A_TIME)
    ) as rows:
        for row in rows:
            yield to_wire(row)


def list_metrics(
    session: Session, job_id: str, *, after: str | None, limit: int, order: Order
) -> PageBuilder:
    after_step = number_in(after) if after else None
    if after and after_step is None:
        raise unknown_cursor(after, "step")
    return read_page(
        session,
        select(MetricRow.step).where(MetricRow.job_id == job_id).distinct(),
        (MetricRow.step.expression,),
        after=None if after_step is None else (after_step,),
        limit=limit,
        order=order,
        key_of=lambda row: (row.step,),
        items_of=lambda rows: _points(session, job_id, [row.step for row in rows]),
    )


def _points(session: Session, job_id: str, steps: list[int]) -> Iterator[tuple[str, bytes]]:
    if not steps:
        return
    values: dict[int, dict[str, float | None]] = {step: {} for step in steps}
    rows = session.execute(
        select(MetricRow.step, MetricRow.name, MetricRow.value).where(
            MetricRow.job_id == job_id, MetricRow.step.between(min(steps), max(steps))
        )
    )
    for step, name, value in rows:
        values[step][name] = value
    for step in steps:
        point = MetricPoint(id=str(step), step=step, values=values[step])
        yield point.id, json_of(point)


def list_checkpoints(
    session: Session, job: JobRow, *, after: str | None, limit: int, order: Order
) -> PageBuilder:
    cursor = None
    if after:
        last = session.get(CheckpointRow, after)
        if last is None or last.job_id != job.id:
            raise unknown_cursor(after, "checkpoint")
        cursor = (last.step,)
    return read_page(
        session,
        select(CheckpointRow).where(CheckpointRow.job_id == job.id),
        (CheckpointRow.step.expression,),
        after=cursor,
        limit=limit,
        order=order,
        key_of=lambda row: (row[0].step,),
        items_of=lambda rows: ((row.id, json_of(_checkpoint(job, row))) for (row,) in rows),
    )


def _checkpoint(job: JobRow, row: CheckpointRow) -> Checkpoint:
    return Checkpoint(
        id=row.id,
        created_at=int(row.created_at),
        fine_tuning_job_id=job.id,
        fine_tuned_model_checkpoint=row.model,
        step_number=row.step,
        metrics=_metrics(row),
        adapter_id=row.adapter_id,
    )


def _metrics(row: CheckpointRow) -> CheckpointMetrics:
    try:
        return CheckpointMetrics.model_validate(row.metrics)
    except ValueError:
        return CheckpointMetrics()


def delete_metrics_after(session: Session, job_id: str, step: int) -> None:
    """Delete the metrics of steps after `step`, because a new attempt repeats these steps."""
    session.execute(delete(MetricRow).where(MetricRow.job_id == job_id, MetricRow.step > step))
