"""Routes for a job's output: events (paged or live by SSE), metrics, checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse

from tunesmith_schema import (
    Checkpoint,
    Event,
    EventKind,
    JobFile,
    JobLineage,
    MetricColumns,
    MetricPoint,
    Page,
    SelfCheck,
    StoredResumePoint,
)
from tunesmith_schema.bounds import MAX_STEP
from tunesmith_server.services.catalogue import lineage
from tunesmith_server.services.paging import Order
from tunesmith_server.services.results import curves, self_checks
from tunesmith_server.services.training import events, job_files, jobs

from .bounds import AfterQuery, FileNamePath, IdPath
from .deps import CallerDep, CursorDep, KeyRoute, PrincipalDep, ReaderDep, StateDep, bulk, send_page
from .stream import parse_last_event_id

router = APIRouter(prefix="/fine_tuning/jobs/{job_id}", tags=["fine-tuning"], route_class=KeyRoute)

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@router.get(
    "/events",
    response_model=None,
    responses={200: {"model": Page[Event], "content": {"text/event-stream": {}}}},
)
def list_events(
    principal: PrincipalDep,
    state: StateDep,
    session: ReaderDep,
    cursor: CursorDep,
    job_id: IdPath,
    stream: bool = False,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
    kind: Annotated[list[EventKind] | None, Query(max_length=len(EventKind))] = None,
    level: Annotated[list[Literal["info", "warn", "error"]] | None, Query(max_length=3)] = None,
    q: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """List events, newest first. `stream=true` sends the events after `Last-Event-ID` (or `after`)
    as SSE, oldest first; the last event is named `done`. In a list, `kind`, `level` and `q` select
    events: `kind` and `level` may be repeated, and `q` is a part of the message. A stream is not
    filtered."""
    jobs.retrieve(session, job_id)
    if not stream:
        page = events.list_events(
            session,
            job_id,
            after=cursor.after,
            limit=cursor.limit,
            order=cursor.order,
            kinds=kind or (),
            levels=level or (),
            text=q,
        )
        return send_page(page)
    seq = parse_last_event_id(last_event_id)
    if cursor.after and not seq:
        seq = events.seq_of(job_id, cursor.after)
    return StreamingResponse(
        state.hub.sse(principal.use, job_id, seq),
        media_type="text/event-stream",
        headers=SSE_HEADERS,
    )


@router.get(
    "/metrics", response_model=None, responses={200: {"model": Page[MetricPoint] | MetricColumns}}
)
def metrics(
    caller: CallerDep,
    session: ReaderDep,
    job_id: IdPath,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Order = "asc",
    format: Literal["points", "columns"] = "points",
    names: Annotated[str | None, Query(max_length=2000)] = None,
    points: Annotated[int, Query(ge=3, le=curves.MAX_POINTS)] = 2000,
    first: Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP)] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP)] = None,
) -> Response:
    """List metric values by optimiser step, lowest step first. `format=columns` returns a curve for
    each metric in `names` (separated by commas), from step `from` to step `to`. A curve has at most
    `points` values: the minimum and the maximum of each block of steps, and the value of the job's
    last step."""
    job = jobs.retrieve(session, job_id)
    if format == "columns":
        wanted = names.split(",") if names else None
        content = curves.columns(session, job, names=wanted, points=points, first=first, last=last)
        return Response(content, media_type="application/json")
    return send_page(events.list_metrics(session, job_id, after=after, limit=limit, order=order))


@router.get("/checkpoints", response_model=None, responses={200: {"model": Page[Checkpoint]}})
def checkpoints(
    caller: CallerDep, session: ReaderDep, cursor: CursorDep, job_id: IdPath
) -> Response:
    job = jobs.retrieve(session, job_id)
    return send_page(
        events.list_checkpoints(
            session, job, after=cursor.after, limit=cursor.limit, order=cursor.order
        )
    )


@router.get("/self_check")
def self_check(
    caller: CallerDep,
    session: ReaderDep,
    job_id: IdPath,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_STEP)] = None,
) -> SelfCheck:
    """Return the self-check of `attempt` (default: the newest), with state and detail of each
    check."""
    return self_checks.retrieve(session, jobs.retrieve(session, job_id), attempt)


@router.get("/resume_points")
def resume_points(caller: CallerDep, session: ReaderDep, job_id: IdPath) -> Page[StoredResumePoint]:
    """List the resume points from which a fork can start, newest first."""
    points = lineage.resume_points(session, jobs.retrieve(session, job_id))
    return Page(data=points)


@router.get("/lineage")
def job_lineage(caller: CallerDep, session: ReaderDep, job_id: IdPath) -> JobLineage:
    """Return the job's origin, forks, retries and results."""
    return lineage.retrieve(session, jobs.retrieve(session, job_id))


@router.get("/files")
def list_files(caller: CallerDep, session: ReaderDep, job_id: IdPath) -> Page[JobFile]:
    """List the files of a job, each with the path of its content. These files are the data, create
    request, environment, log, metrics, report, self-check, evaluation, and the weights with the
    result of their check."""
    return Page(data=job_files.list_files(session, jobs.retrieve(session, job_id)))


@router.get("/files/{file_name}", response_class=Response)
@bulk
def file_content(
    caller: CallerDep, state: StateDep, session: ReaderDep, job_id: IdPath, file_name: FileNamePath
) -> Response:
    """Return `recipe.json`, `environment.json` or `log.txt`."""
    job = jobs.retrieve(session, job_id)
    content, media_type = job_files.content(session, state.storage, job, file_name)
    return Response(content, media_type=media_type)
