"""Contents of the job page, read with the service functions that the API's routes use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic_core import from_json
from sqlalchemy.orm import Session

from tunesmith_schema import (
    Checkpoint,
    Event,
    EventKind,
    FileObject,
    Job,
    JobEvaluation,
    JobLineage,
    JobReport,
    SelfCheck,
    StoredResumePoint,
)
from tunesmith_server.api.deps import State
from tunesmith_server.core.errors import NotFound
from tunesmith_server.models import FileRow, JobRow
from tunesmith_server.portal.view import number
from tunesmith_server.services.catalogue import lineage
from tunesmith_server.services.data import files
from tunesmith_server.services.paging import Order
from tunesmith_server.services.results import curves, self_checks
from tunesmith_server.services.training import events, jobs, reports
from tunesmith_server.services.training import waiting as waits
from tunesmith_server.services.training.job_filters import JobFilters

from . import charts
from .marks import Mark, marks
from .view import JobView

EVENTS = 60
"""Number of events on one page of the list."""
_CHECKPOINTS = 100
_MOST_WARNINGS = 20
_TOLD = (EventKind.STATE, EventKind.RESUMED, EventKind.STALLED)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of the page that the server updates while the job is running."""

    job: Job
    head_seq: int
    """Number of the newest event."""
    report: JobReport | None
    check: SelfCheck | None
    evaluation: JobEvaluation | None
    lineage: JobLineage
    points: list[StoredResumePoint]
    checkpoints: list[Checkpoint]
    files: list[FileObject]
    """Training file and validation file, if they still exist."""
    events: list[Event]
    has_more_events: bool
    warnings: list[Event]
    """The last warnings and errors, newest first."""
    values: dict[str, float | None]
    """Last value of each metric; the keys are metric names."""
    curves: charts.Curves
    """Curves with a small number of points."""
    num_void: int
    """Number of step ranges that a later attempt repeated."""
    marks: list[Mark]
    earlier: str
    """Id of the job that was created before this job; empty if there is no such job."""
    later: str


def read(session: Session, state: State, view: JobView) -> Parts:
    """Read the contents of the page. Raises NotFound for an unknown job."""
    row = jobs.retrieve(session, view.job_id)
    job = jobs.to_wire(row)
    if row.finished_at is None and row.state not in jobs.HELD:
        job = job.model_copy(update=waits.describe(session, state.queue_view.get(), row))
    told = events.list_events(
        session, row.id, after=view.after or None, limit=EVENTS, order="desc", kinds=view.kinds,
        levels=view.levels, text=view.text or None,
    )  # fmt: skip
    warnings = _events(session, row.id, levels=["warn", "error"])
    pages = events.list_checkpoints(session, row, after=None, limit=_CHECKPOINTS, order="desc")
    checkpoints = [Checkpoint.model_validate(item) for item in from_json(pages.content())["data"]]
    related = lineage.retrieve(session, row)
    measured = from_json(
        curves.columns(session, row, names=None, points=charts.POINTS, first=None, last=None)
    )
    points = lineage.resume_points(session, row)
    noted = {event.seq: event for event in _events(session, row.id, kinds=_TOLD) + warnings}
    return Parts(
        job=job,
        head_seq=row.last_seq,
        report=_report(session, row, view.attempt),
        check=_check(session, row, view.attempt),
        evaluation=_evaluation(session, row),
        lineage=related,
        points=points,
        checkpoints=checkpoints,
        files=[
            files.to_wire(found)
            for name in (row.training_file, row.validation_file)
            if name and (found := _file(session, name))
        ],
        events=[Event.model_validate(item) for item in from_json(told.content())["data"]],
        has_more_events=told.has_more,
        warnings=warnings,
        values=charts.last_values(measured["curves"]),
        curves=measured["curves"],
        num_void=len(measured["void"]),
        marks=marks(
            checkpoints=checkpoints,
            lineage=related,
            told=noted.values(),
            step_at=lambda event: _step_at(session, row.id, event),
            points=points,
            evaluations=_evaluations(measured["curves"]),
        ),
        earlier=_next(session, row.id, "desc"),
        later=_next(session, row.id, "asc"),
    )


def _evaluations(measured: charts.Curves) -> dict[int, str]:
    found = {}
    for name, label in (("valid_loss", "validation loss"), ("valid_reward", "held-out reward")):
        if curve := measured.get(name):
            for step, value in zip(curve["steps"], curve["values"], strict=True):
                found[step] = f"Evaluation: {label} {number(value)}"
    return found


def _next(session: Session, job_id: str, order: Order) -> str:
    page = jobs.list_jobs(session, after=job_id, limit=1, order=order, filters=JobFilters())
    return next((str(item["id"]) for item in from_json(page.content())["data"]), "")


def _events(
    session: Session, job_id: str, kinds: Sequence[EventKind] = (), levels: Sequence[str] = ()
) -> list[Event]:
    page = events.list_events(
        session, job_id, after=None, limit=_MOST_WARNINGS, order="desc", kinds=kinds, levels=levels
    )
    return [Event.model_validate(item) for item in from_json(page.content())["data"]]


def _step_at(session: Session, job_id: str, event: Event) -> int | None:
    step = event.data.get("step")
    if isinstance(step, int):
        return step
    before = events.list_events(
        session, job_id, after=event.id, limit=1, order="desc", kinds=[EventKind.METRICS]
    )
    found = [item["data"].get("step") for item in from_json(before.content())["data"]]
    return found[0] if found and isinstance(found[0], int) else None


def _report(session: Session, row: JobRow, attempt: int | None) -> JobReport | None:
    with suppress(NotFound):
        return reports.retrieve(session, row, attempt)
    return None


def _check(session: Session, row: JobRow, attempt: int | None) -> SelfCheck | None:
    with suppress(NotFound):
        return self_checks.retrieve(session, row, attempt)
    return None


def _evaluation(session: Session, row: JobRow) -> JobEvaluation | None:
    if row.evaluation is None:
        return None
    with suppress(NotFound):
        return reports.retrieve_evaluation(session, row)
    return None


def _file(session: Session, file_id: str) -> FileRow | None:
    with suppress(NotFound):
        return files.retrieve(session, file_id)
    return None
