"""Routes for several jobs at a time: one live stream, and the comparison of jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from tunesmith_schema.bounds import MAX_STEP
from tunesmith_schema.comparison import Axis, JobComparison
from tunesmith_server.services.training import comparison, jobs

from . import many_jobs, watches
from .deps import CallerDep, KeyRoute, PrincipalDep, ReaderDep, StateDep, project_reader
from .events import SSE_HEADERS

MAX_POINTS = 2000

router = APIRouter(prefix="/fine_tuning", tags=["fine-tuning"], route_class=KeyRoute)


@router.get("/events", response_model=None, responses={200: {"content": {"text/event-stream": {}}}})
def stream_events(
    principal: PrincipalDep,
    state: StateDep,
    stream: Literal["true"],
    jobs_: Annotated[str, Query(alias="jobs", max_length=2000)],
    last_event_id: Annotated[str | None, Header(max_length=2000)] = None,
) -> StreamingResponse:
    """Send the events of many jobs as SSE.

    `jobs` is a comma-separated list of at most 20 jobs. The item `ID` requests all events of a job,
    and `ID:NUMBER` only the events after this number. The item `*` requests a message named `job`
    for each job that is unfinished or has just ended; the message has the job's state and progress.
    A client that reconnects sends the id of its last message as `Last-Event-ID` or as `jobs`. After
    a reconnection, the client gets all messages after this id.
    """
    position = watches.parse(jobs_)
    if last_event_id:
        position = position.moved_to(last_event_id)
    with project_reader(state, principal) as session:
        for job_id in position.open():
            jobs.retrieve(session, job_id)
    return StreamingResponse(
        many_jobs.sse(state.hub, use=principal.use, position=position),
        media_type="text/event-stream",
        headers=SSE_HEADERS,
    )


@router.get("/compare")
def compare(
    caller: CallerDep,
    session: ReaderDep,
    jobs_: Annotated[str, Query(alias="jobs", max_length=1000)],
    axis: Axis = "step",
    points: Annotated[int, Query(ge=3, le=MAX_POINTS)] = 500,
    first: Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP)] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP)] = None,
) -> JobComparison:
    """Compare two to eight jobs, given by comma-separated ids. The answer has the results of the
    jobs, the settings in which they differ (also values chosen for `auto`), and curves over steps,
    trained tokens or hours. A curve has at most `points` values. `from` and `to` limit the curves
    and the best values of metrics to a range of steps."""
    rows = comparison.find(session, jobs_.split(","))
    return comparison.compare(session, rows, axis=axis, points=points, first=first, last=last)
