"""Validation of worker reports, and storage of their events.

An event that cannot be read or stored is quarantined: a warning is stored in its place, and later
events are stored as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError
from sqlalchemy.orm import Session

from tunesmith_schema import (
    MAX_EVENTS_PER_REPORT,
    ErrorCode,
    EventKind,
    Report,
    RunEvent,
    RunReport,
    StoredFile,
)
from tunesmith_schema.bounds import MAX_COUNT, MAX_STEP, JsonBound
from tunesmith_schema.field_errors import field_errors
from tunesmith_server.core.errors import Conflict, ServiceError
from tunesmith_server.models import JobRow

from ..results.faults import is_outage
from ..training import events

log = logging.getLogger(__name__)

_MAX_REASON = 300
SizeOf = Callable[[str], int | None]
_RUN_REPORT = JsonBound(256 * 1024, finite=True)
BoundedRunReport = Annotated[RunReport, _RUN_REPORT]
_bounded = TypeAdapter[Any](Annotated[Any, _RUN_REPORT])  # Any: JSON


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Part of a report that cannot be stored."""

    reason: str
    kind: str = "?"
    source_seq: int | None = None
    """Number of the event; None if the event has no valid number."""


def _read_event(value: Any) -> RunEvent | Unreadable:  # Any: whatever JSON the worker sent
    try:
        return RunEvent.model_validate(value)
    except (ValidationError, RecursionError) as error:
        return _unreadable(value, error)


def _read_run_report(value: Any) -> RunReport | Unreadable | None:  # Any: as above
    try:
        # The size comes first: pydantic has an error for each wrong item.
        return None if value is None else RunReport.model_validate(_bounded.validate_python(value))
    except (ValidationError, RecursionError) as error:
        return Unreadable(reason=_reason(error))


class ReceivedReport(Report):
    """Report of a worker, in which events and run report may be `Unreadable`. A report with
    unreadable parts is not refused, because the worker must get a command in any case."""

    events: list[
        Annotated[
            RunEvent | Unreadable, PlainValidator(_read_event, json_schema_input_type=RunEvent)
        ]
    ] = Field(default_factory=list, max_length=MAX_EVENTS_PER_REPORT)  # type: ignore[assignment]  # wider than in Report
    """New events, in the order of their numbers."""
    run_report: Annotated[
        RunReport | Unreadable | None,
        PlainValidator(_read_run_report, json_schema_input_type=BoundedRunReport | None),
    ] = None  # type: ignore[assignment]  # wider than in Report
    """Current run report of the attempt."""


def names_files(report: ReceivedReport) -> bool:
    """Return True if the report refers to stored content."""
    events = [event for event in report.events if isinstance(event, RunEvent)]
    return any(event.files for event in events) or bool(report.outcome and report.outcome.files)


def check_files(size_of: SizeOf, report: ReceivedReport) -> ReceivedReport:
    """Return the report without the events whose files are missing in storage. Raises Conflict if a
    file of the outcome is missing: the worker then sends the content again. Call this function
    before the transaction, because storage may be slow. `size_of` returns the size of stored
    content, or None."""
    for file in report.outcome.files if report.outcome else []:
        if why := _missing(size_of, file):
            hint = "PUT the content to /internal/jobs/{id}/blobs/{sha256}, then report again"
            raise Conflict(ErrorCode.CONTENT_MISSING, why, hint=hint)
    checked: list[RunEvent | Unreadable] = []
    for event in report.events:
        reasons = [
            why
            for file in (isinstance(event, RunEvent) and event.files) or []
            if (why := _missing(size_of, file))
        ]
        checked.append(_unreadable(event, ValueError(reasons[0])) if reasons else event)
    return report.model_copy(update={"events": checked})


def _missing(size_of: SizeOf, file: StoredFile) -> str | None:
    if size_of(file.sha256) == file.bytes:
        return None
    return f"no stored content for {file.name!r}: sha256 {file.sha256}, {file.bytes} bytes"


def store_events(
    session: Session,
    job: JobRow,
    received: Sequence[RunEvent | Unreadable],
    store: Callable[[RunEvent], None],
) -> None:
    """Store the events that the job does not have yet; `store` stores one event. If a number is
    missing, later events are not stored: the worker keeps them, and sends them again after the
    missing event."""
    numbered: list[tuple[int, RunEvent | Unreadable]] = []
    last = job.source_seq
    for event in received:
        number = last + 1 if event.source_seq is None else event.source_seq
        if number > last + 1:
            log.warning("%s: event %d arrived before event %d", job.id, number, last + 1)
            break
        if number > last:
            numbered.append((number, event))
            last = number
    if numbered:
        _store_all(session, job, numbered, store)


def _store_all(
    session: Session,
    job: JobRow,
    numbered: Sequence[tuple[int, RunEvent | Unreadable]],
    store: Callable[[RunEvent], None],
) -> None:
    """Store the events in one savepoint; if that fails, store each half in its own savepoint."""
    try:
        with session.begin_nested():
            for number, event in numbered:
                if isinstance(event, Unreadable):
                    _quarantine(session, job, number, event)
                else:
                    _check_numbers(event)
                    store(event)
                job.source_seq = number
        return
    except Exception as error:
        if is_outage(error):
            raise
        reason = error
    if len(numbered) > 1:
        half = len(numbered) // 2
        _store_all(session, job, numbered[:half], store)
        _store_all(session, job, numbered[half:], store)
        return
    [(number, event)] = numbered
    if isinstance(event, Unreadable):
        raise reason  # the warning itself cannot be stored
    log.warning("event %d of %s is quarantined: %r", number, job.id, reason)
    _store_all(session, job, [(number, _unreadable(event, reason))], store)


def _quarantine(session: Session, job: JobRow, number: int, event: Unreadable) -> None:
    events.add(
        session,
        job,
        f"an event of the trainer ({event.kind}, number {number}) was not stored: {event.reason}",
        kind=EventKind.QUARANTINED,
        level="warn",
        data={"kind": event.kind, "source_seq": number, "reason": event.reason},
    )


def _check_numbers(event: RunEvent) -> None:
    limits = {"step": MAX_STEP, "total_steps": MAX_STEP, "count": MAX_STEP}
    for name, limit in {**limits, "trained_tokens": MAX_COUNT}.items():
        value = event.data.get(name)
        if isinstance(value, int) and not 0 <= value <= limit:
            raise ValueError(f"data.{name}: must be from 0 to {limit}, got {value}")


def _unreadable(event: Any, error: Exception) -> Unreadable:  # Any: JSON or a RunEvent
    if isinstance(event, RunEvent):
        return Unreadable(reason=_reason(error), kind=event.kind, source_seq=event.source_seq)
    fields = event if isinstance(event, dict) else {}
    number, kind = fields.get("source_seq"), fields.get("kind", EventKind.MESSAGE)
    is_number = type(number) is int and 0 < number <= MAX_COUNT
    return Unreadable(
        reason=_reason(error),
        kind=_plain(str(kind)[:40]),
        source_seq=number if is_number else None,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = field_errors(error.errors(include_url=False, include_input=False))[0]
        text = f"{first.name}: {first.message}" if first.name else first.message
    elif isinstance(error, ServiceError | ValueError):
        text = str(error)
    else:
        text = f"{type(error).__name__} while it was stored"
    return _plain(" ".join(text.split())[:_MAX_REASON])


def _plain(text: str) -> str:
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
