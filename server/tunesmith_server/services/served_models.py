"""Models that can answer chat and completion requests: base models, tuned models, checkpoints."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, ModelTokenizer
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.inference.protocol import LIST_MODELS, ServedModel
from tunesmith_server.models import AdapterRow
from tunesmith_server.models.scope import all_projects

from . import adapters, base_models

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


def _resolve(
    session: Session, settings: Settings, name: str, depth: int, *, is_base: bool = False
) -> ServedModel | None:
    """`is_base`: the name is that of the base of a model that the session may use. Such a base may
    be another project's, which has shared the tuned model only."""
    query = select(AdapterRow).where(AdapterRow.model == name)
    row = session.scalar(all_projects(query) if is_base else query)
    if row is not None and depth:
        return ServedModel(
            id=name,
            kind="full" if row.kind == "full" else "adapter",
            base=_resolve(session, settings, row.base_model, depth - 1, is_base=True)
            or ServedModel(id=row.base_model, kind="base"),
            files=tuple(adapters.files_of(row)),
        )
    used = session.scalar(select(exists().where(AdapterRow.base_model == name)))
    is_base = not name.startswith("ft:") and (
        (used and base_models.is_allowed(session, settings, name))
        or name in base_models.names(session, settings)
    )
    return ServedModel(id=name, kind="base") if is_base else None


_TOKENIZER = "tokenizer.json"
_TOKENIZER_FILES = (
    _TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
)
_MAX_TOKENIZER_BYTES = 64 * 1024**2


def tokenizer(session: Session, settings: Settings, storage: Storage, name: str) -> ModelTokenizer:
    """Return the tokenizer of a model. Raises NotFound if the server does not have the model, or
    if the base model's folder is not on this host."""
    model: ServedModel | None = resolve(session, settings, name)
    files: dict[str, str] = {}
    while model is not None and _TOKENIZER not in files:
        stored = {file.name: file for file in model.files}
        # Only an adapter that added tokens has a tokenizer.
        for file_name in _TOKENIZER_FILES if _TOKENIZER in stored else ():
            file = stored.get(file_name)
            if file is not None and file.bytes <= _MAX_TOKENIZER_BYTES:
                content = b"".join(storage.stream(file.sha256, 0, file.bytes))
                files[file_name] = content.decode()
        if model.kind == "base":
            files = _tokenizer_of_folder(settings, model.id)
        model = model.base
    if _TOKENIZER not in files:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"the tokenizer of {name!r} is not on the API's host",
            param="model",
            hint="put the base model's folder below TUNESMITH_MODEL_DIRS of the API",
        )
    return ModelTokenizer(model=name, files=files)


def _tokenizer_of_folder(settings: Settings, name: str) -> dict[str, str]:
    folder = base_models.local_folders(settings).get(name)
    if folder is None:
        return {}
    paths = [folder / file_name for file_name in _TOKENIZER_FILES]
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in paths
        if path.is_file() and path.stat().st_size <= _MAX_TOKENIZER_BYTES
    }


def existing(session: Session, names: Sequence[str]) -> set[str]:
    """Return those of some registered models that have not been deleted."""
    tuned = session.scalars(select(AdapterRow.model).where(AdapterRow.model.in_(names)))
    return {*tuned, *(name for name in names if not name.startswith("ft:"))}
