"""Routes under /v1/models: base models and tuned models on this server."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Query, Response

from tunesmith_schema import Model, ModelDeleted, ModelTokenizer, Page
from tunesmith_server.services import adapters, base_models, served_models

from .bounds import AfterQuery, ModelPath
from .deps import CallerDep, KeyRoute, ReaderDep, SessionDep, StateDep, bulk, send_page

router = APIRouter(prefix="/models", tags=["models"], route_class=KeyRoute)


@router.get("", response_model=None, responses={200: {"model": Page[Model]}})
def list_models(
    caller: CallerDep,
    state: StateDep,
    session: ReaderDep,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    checkpoints: bool = False,
) -> Response:
    """List base models by name, then tuned models, newest first. `checkpoints=true` adds the
    checkpoints, whose names are models too."""
    page = base_models.list_models(
        session, state.settings, after=after, limit=limit, checkpoints=checkpoints
    )
    return send_page(page)


@router.get("/{model:path}/tokenizer")
@bulk
def tokenizer(
    caller: CallerDep, state: StateDep, session: ReaderDep, model: ModelPath
) -> ModelTokenizer:
    """Return the files of a model's tokenizer, for programs that count tokens themselves."""
    return served_models.tokenizer(session, state.settings, state.storage, model)


@router.get("/{model:path}")
def retrieve(caller: CallerDep, state: StateDep, session: ReaderDep, model: ModelPath) -> Model:
    return base_models.retrieve(session, state.settings, model)


@router.delete("/{model:path}")
def delete(
    caller: CallerDep,
    state: StateDep,
    session: SessionDep,
    model: ModelPath,
    after_commit: BackgroundTasks,
) -> ModelDeleted:
    """Delete a tuned model. Base models cannot be deleted."""
    adapters.delete_model(session, model)
    after_commit.add_task(state.inference.forget, model)
    return ModelDeleted(id=model)
