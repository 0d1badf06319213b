"""Route that creates a job, or only validates the request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.orm import Session

from tunesmith_schema import Job, JobCreate, JobValidation, Recipe, RequestProblem
from tunesmith_server.core.errors import validation_bodies
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.principal import Principal
from tunesmith_server.identity import policy
from tunesmith_server.services.catalogue import chat_limits
from tunesmith_server.services.training import job_create, job_validation

from .audited import is_dry_run
from .deps import (
    KeyRoute,
    PrincipalDep,
    SessionDep,
    State,
    StateDep,
    project_writer,
    state_of,
)
from .jobs import RequesterDep, mark_replay


class _CreateRoute(KeyRoute):  # type: ignore[misc, valid-type]  # a function makes KeyRoute
    """Route whose response to a dry run lists all problems, even if the body is malformed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response: Response = await handle(request)
            except RequestValidationError as error:
                if not (is_dry_run(request) and isinstance(error.body, dict)):
                    raise
                return await run_in(Plane.USERS, partial(_report, request, error))
            return response

        return answer


router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"], route_class=_CreateRoute)


@router.post("")
def create(
    principal: PrincipalDep,
    requester: RequesterDep,
    state: StateDep,
    session: SessionDep,
    body: JobCreate,
    response: Response,
    validate_only: Annotated[bool, Query()] = False,
) -> Job | JobValidation:
    """Create a fine-tuning job. A second request with the same `Idempotency-Key` returns the same
    job. `validate_only=true` creates nothing and returns all problems of the request."""
    if validate_only:
        problems = _problems(session, state, principal, body.model_dump(mode="json"))
        warnings = chat_limits.find_warnings(state.settings, body.recipe)
        return JobValidation(valid=not problems, problems=problems, warnings=warnings)
    return mark_replay(start(session, state, principal, body, requester), response)


def start(
    session: Session,
    state: State,
    principal: Principal,
    body: JobCreate,
    requester: job_create.Requester,
) -> tuple[Job, bool]:
    """Create a job if the caller's rights and limits allow it. If the request repeats an earlier
    request, return the job of the earlier request and True."""
    _require_priority(principal, body.scheduling.priority if body.scheduling else 0)
    return job_create.create(session, state.settings, state.wake_ups, body, requester)


def find_problems(
    session: Session,
    state: State,
    principal: Principal,
    body: dict[str, Any],  # Any: JSON
    others: Sequence[dict[str, Any]] = (),
) -> list[RequestProblem]:
    """Return all reasons why a request with this body would be refused.

    `others`: pydantic's errors in the headers and the query of the request.
    """
    fields, errors = job_validation.split_fields(body)
    problems = [
        RequestProblem(
            param=found.param, message=found.message, code=str(found.code), hint=found.hint
        )
        for found in validation_bodies([*others, *errors])
    ]
    return problems + _problems(session, state, principal, fields)


def find_warnings(state: State, body: dict[str, Any]) -> list[RequestProblem]:  # Any: JSON
    """Return the warnings about the job that this body would create; none if the recipe in the body
    is not valid."""
    try:
        recipe = Recipe.model_validate(body.get("recipe", {}))
    except ValidationError:
        return []
    return chat_limits.find_warnings(state.settings, recipe)


def _require_priority(principal: Principal, priority: int) -> None:
    if priority > 0:
        policy.require(principal, "manage", "scheduling.priority above 0")


def _problems(
    session: Session, state: State, principal: Principal, fields: Mapping[str, Any]
) -> list[RequestProblem]:
    problems = job_validation.find_problems(session, state.settings, fields, owner=principal.key_id)
    priority = (fields.get("scheduling") or {}).get("priority")
    rank = priority if isinstance(priority, int) else 0
    refused = job_validation.refusal(partial(_require_priority, principal, rank))
    return [*problems, refused] if refused else problems


def _report(request: Request, error: RequestValidationError) -> Response:
    elsewhere = [item for item in error.errors() if item["loc"][0] != "body"]
    state, principal = state_of(request), request.state.principal
    with project_writer(state, principal) as session:
        problems = find_problems(session, state, principal, error.body, elsewhere)
    answer = JobValidation(valid=False, problems=problems)
    return Response(answer.model_dump_json(), media_type="application/json")
