"""Routes under /v1/evaluations: evaluations on demand, and results of lm-eval."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from tunesmith_schema import EvaluationCreate, EvaluationDeleted, Page, RequestedEvaluation
from tunesmith_server.services.catalogue import evaluations

from .bounds import IdPath
from .deps import CallerDep, CursorDep, KeyRoute, ReaderDep, SessionDep, StateDep, send_page

router = APIRouter(prefix="/evaluations", tags=["evaluations"], route_class=KeyRoute)


@router.post("")
def create(
    caller: CallerDep,
    state: StateDep,
    session: SessionDep,
    body: EvaluationCreate,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> RequestedEvaluation:
    """Evaluate a model on a file. By default, the model's base model is evaluated on the same file
    too. If the body has results of lm-eval, store these results and evaluate nothing.

    The evaluation runs on a training worker, between two jobs. A second request with the same
    `Idempotency-Key` returns the same evaluation.
    """
    created, replayed = evaluations.create(
        session,
        state.settings,
        state.wake_ups,
        body,
        owner=caller,
        idempotency_key=idempotency_key,
    )
    if replayed:
        response.headers["idempotent-replayed"] = "true"
    return created


@router.get("", response_model=None, responses={200: {"model": Page[RequestedEvaluation]}})
def list_evaluations(
    caller: CallerDep,
    session: ReaderDep,
    cursor: CursorDep,
    model: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    """List evaluations, newest first. The items have no `result`. `model` selects the evaluations
    of one model."""
    page = evaluations.list_evaluations(
        session, after=cursor.after, limit=cursor.limit, order=cursor.order, model=model
    )
    return send_page(page)


@router.get("/{evaluation_id}")
def retrieve(caller: CallerDep, session: ReaderDep, evaluation_id: IdPath) -> RequestedEvaluation:
    row = evaluations.retrieve(session, evaluation_id)
    waiting_for = evaluations.waiting_for(session, row)
    return evaluations.to_wire(session, row).model_copy(update={"waiting_for": waiting_for})


@router.post("/{evaluation_id}/cancel")
def cancel(caller: CallerDep, session: SessionDep, evaluation_id: IdPath) -> RequestedEvaluation:
    """Cancel an unfinished evaluation. The evaluation's process ends within 5 s."""
    return evaluations.cancel(session, evaluation_id)


@router.delete("/{evaluation_id}")
def delete(caller: CallerDep, session: SessionDep, evaluation_id: IdPath) -> EvaluationDeleted:
    """Delete an ended evaluation."""
    return evaluations.delete(session, evaluation_id)
