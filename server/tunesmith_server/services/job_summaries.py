"""Jobs in a list: the same fields as a single job, without large documents.

A list call parses no recipe: the database returns the stored JSON as text, and recipes that were
seen before are not checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any
from typing import cast as cast_type

from pydantic_core import from_json, to_json
from sqlalchemy import Select, Text, case, cast, func, select

from tunesmith_schema import (
    Hyperparameters,
    Job,
    JobError,
    JobState,
    Method,
    Recipe,
    ReinforcementHyperparameters,
    wire_status,
)
from tunesmith_schema.documents import read_document
from tunesmith_server.models import JobRow

from . import stored_job
from .pages import json_of

MAX_DOCUMENT = 8 * 1024
"""Maximum length of a recipe or method in a list."""

_COLUMNS = (
    *("id", "created_at", "finished_at", "model", "fine_tuned_model", "state", "training_file"),
    *("validation_file", "trained_tokens", "seed", "suffix", "phase", "adapter_id", "attempt"),
    *("step", "total_steps", "cancel_requested", "stop_requested", "forked_from", "forked_step"),
    *("retry_of", "labels", "error", "hyperparameters", "document_version"),
)


@cache
def query() -> Select[Any]:
    """Return the columns of a summary; a large recipe or method is not read."""
    columns = [getattr(JobRow, name) for name in _COLUMNS]
    for name in ("recipe", "method"):
        text = cast(getattr(JobRow, name), Text)
        short = func.length(text) <= MAX_DOCUMENT
        columns.append(case((short, text), else_=None).label(f"{name}_text"))
        columns.append((func.length(text) > MAX_DOCUMENT).label(f"{name}_is_large"))
    return select(*columns)


def key_of(row: Any) -> tuple[Any, ...]:  # Any: a row of `query`
    return (row.created_at, row.id)


def items_of(rows: Sequence[Any]) -> Iterable[tuple[str, bytes]]:  # Any: rows of `query`
    for row in rows:
        try:
            item = _item(row)
        except stored_job.READ_ERRORS:
            item = json_of(_unreadable(row))
        yield row.id, item


def _unreadable(row: Any) -> Job:  # Any: a row of `query`
    """Return what can be read of a row; its error is `unreadable`."""
    documents = {name: _json_in(getattr(row, f"{name}_text")) for name in ("recipe", "method")}
    columns = SimpleNamespace(**{**row._mapping, **documents})
    return stored_job.to_wire(cast_type(JobRow, columns))


def _json_in(text: str | None) -> Any:  # Any: JSON
    try:
        return from_json(text) if text else None
    except ValueError:
        return text


def _item(row: Any) -> bytes:  # Any: a row of `query`
    state = JobState(row.state)
    omitted = [name for name in ("recipe", "method") if getattr(row, f"{name}_is_large")]
    names = Hyperparameters.model_fields
    hyperparameters = {name: row.hyperparameters[name] for name in names}
    method = _method(row, hyperparameters, "method" in omitted)
    if not all(isinstance(value, str) for value in (row.labels or {}).values()):
        raise TypeError("metadata: a value is no text")
    recipe = b"{}" if "recipe" in omitted else _recipe(row.recipe_text, row.document_version)
    item = {
        "id": row.id,
        "object": "fine_tuning.job",
        "created_at": int(row.created_at),
        "finished_at": int(row.finished_at) if row.finished_at else None,
        "estimated_finish": None,
        "model": row.model,
        "fine_tuned_model": row.fine_tuned_model,
        "organization_id": "tunesmith",
        "status": wire_status(state),
        "training_file": row.training_file,
        "validation_file": row.validation_file,
        "hyperparameters": hyperparameters,
        "result_files": [],
        "trained_tokens": row.trained_tokens,
        "error": JobError.model_validate(row.error) if row.error else None,
        "integrations": None,
        "metadata": row.labels,
        "seed": row.seed,
        "suffix": row.suffix,
        "state": state,
        "phase": row.phase,
        "adapter_id": row.adapter_id,
        "attempt": row.attempt or 0,
        "step": row.step or 0,
        "total_steps": row.total_steps,
        "cancel_requested": bool(row.cancel_requested),
        "stop_requested": bool(row.stop_requested),
        "forked_from": row.forked_from,
        "forked_step": row.forked_step,
        "retry_of": row.retry_of,
        "omitted": omitted,
    }
    return to_json(item)[:-1] + b',"method":' + method + b',"recipe":' + recipe + b"}"


def _method(row: Any, hyperparameters: dict[str, Any], is_large: bool) -> bytes:  # Any: as above
    if is_large:  # only a grader is large
        return b'{"type":"reinforcement"}'
    text = row.method_text
    reinforcement = bool(text) and _stored_method(text, row.document_version) == "reinforcement"
    model = ReinforcementHyperparameters if reinforcement else Hyperparameters
    read_document(model, row.hyperparameters, "hyperparameters", version=row.document_version)
    if reinforcement:
        return to_json(from_json(text))
    return to_json({"type": "supervised", "supervised": {"hyperparameters": hyperparameters}})


@lru_cache(maxsize=1024)
def _stored_method(text: str, version: int) -> str:
    """Return the type of a stored method. Raises Unreadable."""
    return read_document(Method, from_json(text), "method", version=version).type


@lru_cache(maxsize=1024)
def _recipe(text: str, version: int) -> bytes:
    """Return a stored recipe with today's names and defaults. Raises Unreadable."""
    document = from_json(text)
    return read_document(Recipe, document, "recipe", version=version).model_dump_json().encode()
