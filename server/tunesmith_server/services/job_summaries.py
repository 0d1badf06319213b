"""Jobs in a list: the same fields as a single job, without large documents.

A list call parses no recipe: the database returns the stored JSON as text, and recipes that were
seen before are not checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json
from sqlalchemy import Select, Text, case, cast, func, select

from tunesmith_schema import Hyperparameters, JobError, JobState, Recipe, wire_status
from tunesmith_schema.renames import current_names
from tunesmith_server.models import JobRow

MAX_DOCUMENT = 8 * 1024
"""Maximum length of a recipe or method in a list."""

_COLUMNS = (
    *("id", "created_at", "finished_at", "model", "fine_tuned_model", "state", "training_file"),
    *("validation_file", "trained_tokens", "seed", "suffix", "phase", "adapter_id", "attempt"),
    *("step", "total_steps", "cancel_requested", "stop_requested", "forked_from", "forked_step"),
    *("retry_of", "labels", "error", "hyperparameters"),
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
        yield row.id, _item(row)


def _item(row: Any) -> bytes:  # Any: a row of `query`
    state = JobState(row.state)
    omitted = [name for name in ("recipe", "method") if getattr(row, f"{name}_is_large")]
    names = Hyperparameters.model_fields
    hyperparameters = {name: row.hyperparameters[name] for name in names}
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
    method = _method(row.method_text, hyperparameters, "method" in omitted)
    recipe = _recipe(row.recipe_text or "{}")
    return to_json(item)[:-1] + b',"method":' + method + b',"recipe":' + recipe + b"}"


def _method(text: str | None, hyperparameters: dict[str, Any], is_large: bool) -> bytes:
    if is_large:  # only a grader is large
        return b'{"type":"reinforcement"}'
    stored = from_json(text) if text else None
    if stored and stored.get("type") == "reinforcement":
        return to_json(stored)
    return to_json({"type": "supervised", "supervised": {"hyperparameters": hyperparameters}})


@lru_cache(maxsize=1024)
def _recipe(text: str) -> bytes:
    """Return a stored recipe with today's names and defaults. A recipe that this version cannot
    read is returned as it is stored."""
    stored = current_names(from_json(text))
    try:
        return Recipe.model_validate(stored).model_dump_json().encode()
    except ValidationError:
        return to_json(stored)
