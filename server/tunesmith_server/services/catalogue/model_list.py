"""List of models: base models by name, then tuned models, newest first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Model
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import AdapterRow

from ..pages import PageBuilder, json_of, read_page
from ..paging import unknown_cursor
from . import base_models, model_folders
from .base_models import CHECKPOINT_MARK

PAGE_BYTES = 4 * 1024 * 1024
"""Maximum size in bytes of a page of models. A page of models may be larger than a page of other
lists, because the `openai` client reads only the first page of models."""

Kind = Literal["base", "tuned", "lora", "full"]
"""Kind of the listed models; `tuned` means adapters and full weights."""
Serving = Callable[[str], str]
"""Function that returns the serving state (`registered`, `on_demand` or `off`) of a model name."""
_TUNED = (
    *(AdapterRow.id, AdapterRow.created_at, AdapterRow.model, AdapterRow.base_model),
    *(AdapterRow.kind, AdapterRow.job_id, AdapterRow.step, AdapterRow.bytes),
)


@dataclass(frozen=True, kw_only=True)
class ModelFilters:
    """Conditions that all listed models meet."""

    base: str | None = None
    """Base model that the listed models were trained from; with this filter, base models are left
    out."""
    kind: Kind | None = None
    text: str | None = None
    """Part of the name, ignoring case."""
    checkpoints: bool = False
    """True if checkpoints are listed too."""

    def allows_base(self, name: str) -> bool:
        is_wanted = self.base is None and self.kind in (None, "base")
        return is_wanted and (self.text or "").casefold() in name.casefold()

    def conditions(self, session: Session) -> Iterator[ColumnElement[bool]]:
        """Yield the SQL conditions that select the listed tuned models."""
        if self.base is not None:
            yield AdapterRow.base_model == self.base
        if self.kind in ("lora", "full"):
            yield AdapterRow.kind == self.kind
        if not self.checkpoints:
            yield AdapterRow.model.not_like(f"%{CHECKPOINT_MARK}%")
        if self.text:
            pattern = "%" + re.sub(r"([%_\\])", r"\\\1", self.text) + "%"
            on_postgresql = session.get_bind().dialect.name == "postgresql"
            like = AdapterRow.model.ilike if on_postgresql else AdapterRow.model.like
            yield like(pattern, escape="\\")


def list_models(
    session: Session,
    settings: Settings,
    *,
    after: str | None,
    limit: int,
    filters: ModelFilters,
    serving: Serving,
) -> PageBuilder:
    """Return base models by name, then tuned models, newest first."""
    wire = _Wire(session, settings, serving)
    page, cursor = PageBuilder(PAGE_BYTES), None
    known = base_models.names(session, settings)
    if after and after not in known:
        tuned = select(AdapterRow.created_at, AdapterRow.id).where(AdapterRow.model == after)
        cursor = session.execute(tuned).one_or_none()
        if cursor is None:
            raise unknown_cursor(after, "model")
    for name in known if cursor is None else []:
        if (after and name <= after) or not filters.allows_base(name):
            continue
        if len(page) == limit:
            page.has_more = True
        if page.has_more or not page.add(name, json_of(wire.base(name))):
            return page
    if filters.kind == "base":
        return page
    return read_page(
        session,
        select(*_TUNED).where(*filters.conditions(session)),
        (AdapterRow.created_at.expression, AdapterRow.id.expression),
        after=None if cursor is None else tuple(cursor),
        limit=limit,
        order="desc",
        key_of=lambda row: (row.created_at, row.id),
        items_of=lambda rows: ((row.model, to_json(wire.tuned(row))) for row in rows),
        page=page,
        chunk=500,
    )


def retrieve(session: Session, settings: Settings, name: str, serving: Serving) -> Model:
    wire = _Wire(session, settings, serving)
    if name in base_models.names(session, settings):
        return wire.base(name)
    row = session.execute(select(*_TUNED).where(AdapterRow.model == name)).one_or_none()
    if row is not None:
        return Model(**wire.tuned(row))
    raise NotFound(
        ErrorCode.MODEL_NOT_FOUND, f"no model {name!r}", hint="GET /v1/models lists all models"
    )


class _Wire:
    """Models in the format of the API."""

    def __init__(self, session: Session, settings: Settings, serving: Serving) -> None:
        self._folders = base_models.local_folders(settings)
        self._workers = base_models.on_workers(session)
        self._serving = serving
        self._contexts: dict[str, int | None] = {}

    def base(self, name: str) -> Model:
        facts = model_folders.read(self._folders.get(name))
        return Model(
            id=name,
            created=facts.created,
            owned_by="base",
            kind="base",
            bytes=facts.bytes,
            context_length=facts.context_length,
            workers=self._workers.get(name, []),
            serving=self._serving(name),
        )

    def tuned(self, row: Any) -> dict[str, Any]:  # Any: a row of columns; JSON
        """Return a tuned model as JSON, without building a `Model` object, because a list may have
        thousands of models."""
        return {
            "id": row.model,
            "object": "model",
            "created": int(row.created_at),
            "owned_by": "tunesmith",
            "adapter_id": row.id,
            "base_model": row.base_model,
            "kind": row.kind,
            "job_id": row.job_id,
            "step": row.step,
            "bytes": row.bytes,
            "context_length": self._context(row.base_model),
            "workers": None,
            "serving": self._serving(row.model),
        }

    def _context(self, base: str) -> int | None:
        if base not in self._contexts:
            folder = self._folders.get(base)
            self._contexts[base] = model_folders.read(folder).context_length
        return self._contexts[base]
