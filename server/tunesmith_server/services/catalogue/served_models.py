"""Models that can answer chat and completion requests: base models, tuned models, checkpoints."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path

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
"""Maximum length of a chain of models with full weights, each trained from the previous model."""


def resolve(
    session: Session, settings: Settings, name: str, *, param: str = "model"
) -> ServedModel:
    """Return the model with this name. Raises NotFound if the server does not have this model.

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
    """Return the model.

    `is_base`: True if `name` is the base model of a tuned model that the session may use. The base
               model may belong to a project that has shared only the tuned model.
    """
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
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_TEMPLATE_FILES = (_TEMPLATE, _CONFIG)
_TOKENIZER_FILES = (_TOKENIZER, *_TEMPLATE_FILES, "special_tokens_map.json", "config.json")
_MAX_TOKENIZER_BYTES = 64 * 1024**2


def tokenizer(session: Session, settings: Settings, storage: Storage, name: str) -> ModelTokenizer:
    """Return the tokenizer of a model. Raises NotFound if the server does not have the model, or
    if the base model's folder is not on this host."""
    return ModelTokenizer(
        model=name, files=_tokenizer_files(session, settings, storage, name, _TOKENIZER_FILES)
    )


def chat_template(session: Session, settings: Settings, storage: Storage, name: str) -> str | None:
    """Return the chat template in the files of `tokenizer`, without reading the vocabulary."""
    files = _tokenizer_files(session, settings, storage, name, _TEMPLATE_FILES)
    if _TEMPLATE in files:
        return files[_TEMPLATE]
    try:
        found = json.loads(files.get(_CONFIG, "{}")).get("chat_template")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def _tokenizer_files(
    session: Session, settings: Settings, storage: Storage, name: str, wanted: Sequence[str]
) -> dict[str, str]:
    model: ServedModel | None = resolve(session, settings, name)
    while model is not None:
        stored = {file.name: file for file in model.files}
        if _TOKENIZER in stored:  # only an adapter that added tokens has a tokenizer
            files = {}
            for file in (stored[item] for item in wanted if item in stored):
                if file.bytes <= _MAX_TOKENIZER_BYTES:
                    content = b"".join(storage.stream(file.sha256, 0, file.bytes))
                    files[file.name] = content.decode()
            return files
        if model.kind == "base":
            folder = base_models.local_folders(settings).get(model.id)
            if folder is not None and _is_small(folder / _TOKENIZER):
                paths = [folder / item for item in wanted]
                return {
                    path.name: path.read_text(encoding="utf-8") for path in paths if _is_small(path)
                }
        model = model.base
    raise NotFound(
        ErrorCode.NOT_FOUND,
        f"the tokenizer of {name!r} is not on the API's host",
        param="model",
        hint="put the base model's folder below TUNESMITH_MODEL_DIRS of the API",
    )


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MAX_TOKENIZER_BYTES


def existing(session: Session, names: Sequence[str]) -> set[str]:
    """Return the names among `names` whose models have not been deleted."""
    tuned = session.scalars(select(AdapterRow.model).where(AdapterRow.model.in_(names)))
    return {*tuned, *(name for name in names if not name.startswith("ft:"))}
