"""Routes under /v1/fine_tuning/jobs: OpenAI's job resource, with the additional field `recipe`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Request, Response

from tunesmith_schema import (
    ErrorCode,
    Job,
    JobDeleted,
    JobEvaluation,
    JobFork,
    JobPatch,
    JobReport,
    JobState,
    MethodName,
    Page,
)
from tunesmith_schema.bounds import MAX_PAIRS, MAX_SECONDS, MAX_STEP, MAX_VALUE
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.services.training import (
    job_control,
    job_create,
    job_delete,
    job_edit,
    job_fork,
    jobs,
    reports,
    waiting,
)
from tunesmith_server.services.training.job_filters import JobFilters

from .bounds import IdPath
from .deps import (
    CallerDep,
    CursorDep,
    KeyRoute,
    PrincipalDep,
    ReaderDep,
    SessionDep,
    StateDep,
    send_page,
)

router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"], route_class=KeyRoute)


async def get_requester(
    principal: PrincipalDep,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> job_create.Requester:
    """Return the caller of a create request, with the request's `Idempotency-Key`."""
    return job_create.Requester(
        owner=principal.key_id,
        idempotency_key=idempotency_key,
        may_raise_priority="manage" in principal.verbs,
    )


RequesterDep = Annotated[job_create.Requester, Depends(get_requester)]

_METADATA = re.compile(r"^metadata\[(.{1,64})\]$")


def mark_replay(result: tuple[Job, bool], response: Response) -> Job:
    """Return the job of a create request; set a header if the request was a repetition."""
    job, replayed = result
    if replayed:
        response.headers["idempotent-replayed"] = "true"
    return job


_Seconds = Query(ge=0, le=MAX_SECONDS)


async def get_filters(
    request: Request,
    state: Annotated[list[JobState] | None, Query(max_length=len(JobState))] = None,
    method: MethodName | None = None,
    model: Annotated[str | None, Query(max_length=512)] = None,
    text: Annotated[str | None, Query(max_length=200)] = None,
    created_after: Annotated[int | None, _Seconds] = None,
    created_before: Annotated[int | None, _Seconds] = None,
    finished_after: Annotated[int | None, _Seconds] = None,
    warned_after: Annotated[int | None, _Seconds] = None,
    owner: Annotated[str | None, Query(max_length=200)] = None,
    forked_from: Annotated[str | None, Query(max_length=64)] = None,
    retry_of: Annotated[str | None, Query(max_length=64)] = None,
    pinned: bool | None = None,
) -> JobFilters:
    """Return the filters in the query parameters of a list."""
    matches = ((_METADATA.match(key), value) for key, value in request.query_params.multi_items())
    metadata = {match.group(1): value for match, value in matches if match}
    if len(metadata) > MAX_PAIRS or any(len(value) > MAX_VALUE for value in metadata.values()):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"metadata: a search may have at most {MAX_PAIRS} pairs, with values of at most "
            f"{MAX_VALUE} characters",
            param="metadata",
            hint="search for fewer pairs or shorter values",
        )
    return JobFilters(
        states=state or [],
        method=method,
        model=model,
        text=text,
        created_after=created_after,
        created_before=created_before,
        finished_after=finished_after,
        warned_after=warned_after,
        owner=owner,
        forked_from=forked_from,
        retry_of=retry_of,
        pinned=pinned,
        metadata=metadata,
        without_metadata=request.query_params.get("metadata") == "null",
    )


@router.get("", response_model=None, responses={200: {"model": Page[Job]}})
def list_jobs(
    caller: CallerDep,
    session: ReaderDep,
    cursor: CursorDep,
    filters: Annotated[JobFilters, Depends(get_filters)],
    include: Annotated[list[Literal["curve"]] | None, Query(max_length=1)] = None,
) -> Response:
    """List jobs, newest first. `metadata[key]=value` selects jobs with this pair; `metadata=null`
    selects jobs without metadata. `state` may be repeated. `text` selects jobs by a part of the id,
    the name, the suffix or a model's name. `created_after`, `created_before`, `finished_after` and
    `warned_after` are Unix seconds; `warned_after` selects jobs with a later warning or error.
    `owner` is the id or the name of a key. `include=curve` adds a small curve of the main
    metric."""
    return send_page(
        jobs.list_jobs(
            session,
            after=cursor.after,
            limit=cursor.limit,
            order=cursor.order,
            filters=filters,
            with_curve=bool(include),
        )
    )


@router.get("/{job_id}")
def retrieve(caller: CallerDep, state: StateDep, session: ReaderDep, job_id: IdPath) -> Job:
    row = jobs.retrieve(session, job_id)
    job = jobs.to_wire(row)
    if row.finished_at is not None or row.state in jobs.HELD:
        return job
    return job.model_copy(update=waiting.describe(session, state.queue_view.get(), row))


@router.patch("/{job_id}")
def edit(caller: CallerDep, session: SessionDep, job_id: IdPath, body: JobPatch) -> Job:
    """Change name, notes, pin or metadata of a job, in any state.

    Fields that are missing in the request keep their values.
    """
    return jobs.to_wire(job_edit.edit(session, job_id, body))


@router.delete("/{job_id}")
def delete(
    caller: CallerDep,
    state: StateDep,
    session: SessionDep,
    job_id: IdPath,
    after_commit: BackgroundTasks,
) -> JobDeleted:
    """Delete an ended job with its tuned models, checkpoints, resume points, samples, metrics and
    events. The job's data files are kept. A job that another unfinished job starts from is not
    deleted."""
    for model in job_delete.delete_job(session, job_id):
        after_commit.add_task(state.inference.forget, model)
    return JobDeleted(id=job_id)


@router.get("/{job_id}/report")
def report(
    caller: CallerDep,
    session: ReaderDep,
    job_id: IdPath,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_STEP)] = None,
) -> JobReport:
    """Return the run report of `attempt` (default: the newest): times, results, the bottleneck and
    advice. During training, the report is at most a few seconds old."""
    return reports.retrieve(session, jobs.retrieve(session, job_id), attempt)


@router.get("/{job_id}/evaluation")
def evaluation(caller: CallerDep, session: ReaderDep, job_id: IdPath) -> JobEvaluation:
    """Return the evaluation at the end of the job: losses or rewards of the base model and the
    tuned model on the same rows, comparisons with confidence intervals, and greedy answers."""
    return reports.retrieve_evaluation(session, jobs.retrieve(session, job_id))


@router.post("/{job_id}/cancel")
def cancel(caller: CallerDep, session: SessionDep, job_id: IdPath) -> Job:
    """Cancel a job. A training job stops within 5 s; until then, its `status` is `running`."""
    return job_control.cancel(session, job_id)


@router.post("/{job_id}/pause")
def pause(caller: CallerDep, session: SessionDep, job_id: IdPath) -> Job:
    """Pause a job. A training job saves a resume point and frees its GPU; until then, `state` is
    `pausing` and `status` is `running`. A paused job has the `status` `queued`."""
    return job_control.pause(session, job_id)


@router.post("/{job_id}/resume")
def resume(caller: CallerDep, state: StateDep, session: SessionDep, job_id: IdPath) -> Job:
    """Resume a paused job where it left off, or cancel a pause that has not taken effect yet."""
    return job_control.resume(session, state.wake_ups, job_id)


@router.post("/{job_id}/stop")
def stop(caller: CallerDep, state: StateDep, session: SessionDep, job_id: IdPath) -> Job:
    """End the training at its next step and keep the result: the job succeeds early."""
    return job_control.stop(session, state.wake_ups, job_id)


@router.post("/{job_id}/fork")
def fork(
    requester: RequesterDep,
    state: StateDep,
    session: SessionDep,
    job_id: IdPath,
    response: Response,
    body: JobFork | None = None,
) -> Job:
    """Create a job that starts from a resume point of this job with a changed recipe. The original
    job may be in any state and is not changed. `Idempotency-Key` works as for new jobs."""
    changes = body or JobFork()
    result = job_fork.fork(session, state.settings, state.wake_ups, job_id, changes, requester)
    return mark_replay(result, response)


@router.post("/{job_id}/retry")
def retry(
    requester: RequesterDep,
    state: StateDep,
    session: SessionDep,
    job_id: IdPath,
    response: Response,
) -> Job:
    """Retry a failed or cancelled job: create a job that has the same body and continues from the
    newest resume point. `Idempotency-Key` works as for new jobs."""
    result = job_fork.retry(session, state.settings, state.wake_ups, job_id, requester)
    return mark_replay(result, response)
