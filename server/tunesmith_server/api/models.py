"""Routes under /v1/models: base models and tuned models on this server."""

from __future__ import annotations

from fastapi import APIRouter

from tunesmith_schema import Model, ModelDeleted, Page
from tunesmith_server.services import adapters, base_models

from .bounds import ModelPath
from .deps import CallerDep, KeyRoute, ReaderDep, SessionDep, StateDep

router = APIRouter(prefix="/models", tags=["models"], route_class=KeyRoute)


@router.get("")
def list_models(caller: CallerDep, state: StateDep, session: ReaderDep) -> Page[Model]:
    return Page(data=base_models.list_models(session, state.settings))


@router.get("/{model:path}")
def retrieve(caller: CallerDep, state: StateDep, session: ReaderDep, model: ModelPath) -> Model:
    return base_models.retrieve(session, state.settings, model)


@router.delete("/{model:path}")
def delete(caller: CallerDep, session: SessionDep, model: ModelPath) -> ModelDeleted:
    """Delete a tuned model. Base models cannot be deleted."""
    adapters.delete_model(session, model)
    return ModelDeleted(id=model)
