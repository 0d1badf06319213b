"""Models that can answer chat and completion requests: base models, tuned models, checkpoints."""

from __future__ import annotations

import difflib

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, StoredFile
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.settings import Settings
from tunesmith_server.inference.protocol import LIST_MODELS, ServedModel
from tunesmith_server.models import AdapterRow

from . import base_models

_MOST_BASES = 8
"""Longest chain of full weights that were trained from full weights."""


def resolve(
    session: Session, settings: Settings, name: str, *, param: str = "model"
) -> ServedModel:
    """Return the model with this name. Raises NotFound if the server does not have it.

    `param`: field of the request that names the model."""
    model = _resolve(session, settings, name, _MOST_BASES)
    if model is None:
        known = base_models.names(session, settings)
        near = difflib.get_close_matches(name, known, n=1)
        raise NotFound(
            ErrorCode.MODEL_NOT_FOUND,
            f"no model {name!r} on this server",
            param=param,
            hint=f"did you mean {near[0]!r}?" if near else LIST_MODELS,
        )
    return model


def _resolve(session: Session, settings: Settings, name: str, depth: int) -> ServedModel | None:
    row = session.scalar(select(AdapterRow).where(AdapterRow.model == name))
    if row is not None and depth:
        return ServedModel(
            id=name,
            kind="full" if row.kind == "full" else "adapter",
            base=_resolve(session, settings, row.base_model, depth - 1)
            or ServedModel(id=row.base_model, kind="base"),
            files=tuple(StoredFile.model_validate(file) for file in row.files),
        )
    used = session.scalar(select(exists().where(AdapterRow.base_model == name)))
    is_base = not name.startswith("ft:") and (used or name in base_models.names(session, settings))
    return ServedModel(id=name, kind="base") if is_base else None
