"""/v1/fine_tuning/jobs: OpenAI's job resource, with `recipe`."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from tunesmith_schema import Job, JobCreate, JobFork, JobReport, Page
from tunesmith_server.services import job_control, job_create, job_fork, jobs, reports

from .deps import CallerDep, CursorDep, KeyRoute, ReaderDep, SessionDep, StateDep

router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"], route_class=KeyRoute)


async def get_once(
    caller: CallerDep,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    x_stainless_retry_count: Annotated[int, Header()] = 0,
) -> job_create.Caller:
    """Who makes a job, and by what the same request is known again."""
    return job_create.Caller(
        owner=caller,
        idempotency_key=idempotency_key,
        is_retry=x_stainless_retry_count > 0,
    )


OnceDep = Annotated[job_create.Caller, Depends(get_once)]

_METADATA = re.compile(r"^metadata\[(.{1,64})\]$")


@router.post("")
def create(
    by: OnceDep, state: StateDep, session: SessionDep, body: JobCreate, response: Response
) -> Job:
    """Start a fine-tuning job. The same `Idempotency-Key` gives the same job again."""
    made = job_create.create(session, state.settings, state.wake_ups, body, by)
    return _answer(made, response)


def _answer(made: tuple[Job, bool], response: Response) -> Job:
    job, replayed = made
    if replayed:
        response.headers["idempotent-replayed"] = "true"
    return job


@router.get("")
def list_jobs(
    caller: CallerDep, session: ReaderDep, cursor: CursorDep, request: Request
) -> Page[Job]:
    """Jobs, newest first; `metadata[key]=value` filters, `metadata=null` takes those without."""
    pairs = ((_METADATA.match(key), value) for key, value in request.query_params.multi_items())
    return jobs.list_jobs(
        session,
        after=cursor.after,
        limit=cursor.limit,
        order=cursor.order,
        metadata={match.group(1): value for match, value in pairs if match},
        without_metadata=request.query_params.get("metadata") == "null",
    )


@router.get("/{job_id}")
def retrieve(caller: CallerDep, session: ReaderDep, job_id: str) -> Job:
    return jobs.to_wire(jobs.retrieve(session, job_id))


@router.get("/{job_id}/report")
def report(
    caller: CallerDep,
    session: ReaderDep,
    job_id: str,
    attempt: Annotated[int | None, Query(ge=1)] = None,
) -> JobReport:
    """Where the time went, what was reached, what bounds the run and what would help: of the newest
    attempt, or of the one asked for. Live while it trains, a few seconds old at most."""
    return reports.retrieve(session, jobs.retrieve(session, job_id), attempt)


@router.post("/{job_id}/cancel")
def cancel(caller: CallerDep, session: SessionDep, job_id: str) -> Job:
    """Cancel. A training job obeys within 5 s; until then it still shows as running."""
    return job_control.cancel(session, job_id)


@router.post("/{job_id}/pause")
def pause(caller: CallerDep, session: SessionDep, job_id: str) -> Job:
    """Pause. A training job saves a resume point and gives its device back; until it has, `state`
    is `pausing` and `status` running. Then `state` is `paused`, which shows as queued."""
    return job_control.pause(session, job_id)


@router.post("/{job_id}/resume")
def resume(caller: CallerDep, state: StateDep, session: SessionDep, job_id: str) -> Job:
    """Go on with a paused job from where it was; a pause still under way is called off."""
    return job_control.resume(session, state.wake_ups, job_id)


@router.post("/{job_id}/stop")
def stop(caller: CallerDep, state: StateDep, session: SessionDep, job_id: str) -> Job:
    """End the training at its next step and keep what it has made: the job succeeds early."""
    return job_control.stop(session, state.wake_ups, job_id)


@router.post("/{job_id}/fork")
def fork(
    by: OnceDep,
    state: StateDep,
    session: SessionDep,
    job_id: str,
    response: Response,
    body: JobFork | None = None,
) -> Job:
    """Start another job from a resume point of this one, with a changed recipe. The job itself,
    which may be in any state, is left as it is. `Idempotency-Key` as in a create."""
    given = body or JobFork()
    made = job_fork.fork(session, state.settings, state.wake_ups, job_id, given, by)
    return _answer(made, response)


@router.post("/{job_id}/retry")
def retry(
    caller: CallerDep, state: StateDep, session: SessionDep, job_id: str, response: Response
) -> Job:
    """Take up a job that failed or was cancelled: a new one with the same body, which goes on from
    the newest resume point. There is one retry of a job; asking again gives that one."""
    made = job_fork.retry(session, state.settings, state.wake_ups, job_id, caller)
    return _answer(made, response)
