"""Routes under /v1/models: base models and tuned models on this server."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Query, Response

from tunesmith_schema import Model, ModelDeleted, ModelTokenizer, ModelUse, Page
from tunesmith_server.services.catalogue import adapters, model_list, model_uses, served_models
from tunesmith_server.services.catalogue.model_list import Kind, ModelFilters

from .bounds import AfterQuery, ModelPath
from .deps import CallerDep, CursorDep, KeyRoute, ReaderDep, SessionDep, StateDep, bulk, send_page

router = APIRouter(prefix="/models", tags=["models"], route_class=KeyRoute)


@router.get("", response_model=None, responses={200: {"model": Page[Model]}})
def list_models(
    caller: CallerDep,
    state: StateDep,
    session: ReaderDep,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    checkpoints: bool = False,
    base: Annotated[str | None, Query(max_length=512)] = None,
    kind: Kind | None = None,
    text: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """List base models by name, then tuned models, newest first. `checkpoints=true` adds the
    checkpoints, which can be used like models. `base` selects the models tuned from this base
    model. `kind` selects base models, tuned models, adapters or full weights. `text` selects models
    by a part of the name."""
    page = model_list.list_models(
        session,
        state.settings,
        after=after,
        limit=limit,
        filters=ModelFilters(base=base, kind=kind, text=text, checkpoints=checkpoints),
        serving=state.inference.serving,
    )
    return send_page(page)


@router.get("/{model:path}/uses", response_model=None, responses={200: {"model": Page[ModelUse]}})
def list_uses(
    caller: CallerDep, state: StateDep, session: ReaderDep, model: ModelPath, cursor: CursorDep
) -> Response:
    """List the jobs that start from a model, and the evaluations that use the model, newest
    first."""
    model_list.retrieve(session, state.settings, model, state.inference.serving)
    return send_page(
        model_uses.list_uses(
            session, model, after=cursor.after, limit=cursor.limit, order=cursor.order
        )
    )


@router.get("/{model:path}/tokenizer")
@bulk
def tokenizer(
    caller: CallerDep, state: StateDep, session: ReaderDep, model: ModelPath
) -> ModelTokenizer:
    """Return the files of a model's tokenizer, for programs that count tokens themselves."""
    return served_models.tokenizer(session, state.settings, state.storage, model)


@router.get("/{model:path}")
def retrieve(caller: CallerDep, state: StateDep, session: ReaderDep, model: ModelPath) -> Model:
    return model_list.retrieve(session, state.settings, model, state.inference.serving)


@router.delete("/{model:path}")
def delete(
    caller: CallerDep,
    state: StateDep,
    session: SessionDep,
    model: ModelPath,
    after_commit: BackgroundTasks,
) -> ModelDeleted:
    """Delete a tuned model, or a single checkpoint. Base models cannot be deleted."""
    adapters.delete_model(session, model)
    after_commit.add_task(state.inference.forget, model)
    return ModelDeleted(id=model)
