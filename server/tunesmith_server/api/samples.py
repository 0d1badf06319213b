"""Routes for the completions of a reinforcement job."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from tunesmith_schema import MAX_SAMPLES_PAGE, Page, Sample, SampleStep
from tunesmith_schema.bounds import MAX_STEP
from tunesmith_server.services.paging import Order
from tunesmith_server.services.results import sample_search, samples
from tunesmith_server.services.results.sample_search import SampleFilters
from tunesmith_server.services.training import jobs

from .bounds import AfterQuery, IdPath
from .deps import (
    CallerDep,
    KeyRoute,
    PrincipalDep,
    ReaderDep,
    StateDep,
    project_reader,
    send_page,
)

router = APIRouter(
    prefix="/fine_tuning/jobs/{job_id}/samples", tags=["fine-tuning"], route_class=KeyRoute
)

_Reward = Query(allow_inf_nan=False)
_Number = Query(ge=0, le=MAX_STEP)


async def get_filters(
    reward_lt: Annotated[float | None, _Reward] = None,
    reward_gt: Annotated[float | None, _Reward] = None,
    ungraded: bool | None = None,
    finish_reason: Literal["stop", "length"] | None = None,
    q: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    group: Annotated[int | None, _Number] = None,
    row: Annotated[int | None, _Number] = None,
) -> SampleFilters:
    """Return the filters in the query parameters of a list."""
    return SampleFilters(
        reward_lt=reward_lt,
        reward_gt=reward_gt,
        ungraded=ungraded,
        finish_reason=finish_reason,
        text=q,
        group=group,
        row=row,
    )


@router.get("", response_model=None, responses={200: {"model": Page[Sample]}})
def list_samples(
    principal: PrincipalDep,
    state: StateDep,
    job_id: IdPath,
    filters: Annotated[SampleFilters, Depends(get_filters)],
    step: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    sort: Literal["spread"] | None = None,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=MAX_SAMPLES_PAGE)] = 20,
    order: Order = "desc",
) -> Response:
    """List the prompts, completions and rewards of a reinforcement job, newest step first.
    Supervised jobs have no samples. `step` selects one step; `row` selects one prompt in all steps.
    With a filter, a request searches a bounded number of samples. While `has_more` is true, request
    the next page with `after=<last_id>`. `sort=spread` sorts the prompts of one step by the range
    of their rewards."""
    by_spread = sort == "spread"
    if by_spread and step is None:
        raise sample_search.needs_step()
    plain = filters.is_empty() and not by_spread
    # Storage may be slow: read it after the transaction has ended.
    with project_reader(state, principal) as session:
        jobs.retrieve(session, job_id)
        if plain:
            slices, more = samples.find_page(
                session, job_id, step=step, after=after, limit=limit, order=order
            )
        else:
            cursor = None if by_spread else after
            steps = sample_search.find_steps(session, job_id, step=step, after=cursor, order=order)
    if plain:
        return send_page(samples.read_page(state.storage, job_id, slices, more))
    if by_spread:
        page = sample_search.by_spread(
            state.storage, job_id, steps, filters, after=after, limit=limit
        )
    else:
        page = sample_search.search(
            state.storage, job_id, steps, filters, after=after, limit=limit, order=order
        )
    return send_page(page)


@router.get("/steps", response_model=None, responses={200: {"model": Page[SampleStep]}})
def list_steps(
    caller: CallerDep,
    session: ReaderDep,
    job_id: IdPath,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Order = "asc",
) -> Response:
    """List the steps that have samples, with number of completions and mean reward, lowest step
    first."""
    jobs.retrieve(session, job_id)
    return send_page(samples.list_steps(session, job_id, after=after, limit=limit, order=order))
