"""Jobs in a list: the same fields as a single job, without large documents.

The database returns the stored documents (recipe, method) as text. A cache maps each text to the
JSON of the API, so that the same text is not parsed and checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any
from typing import cast as cast_type

from pydantic_core import from_json, to_json
from sqlalchemy import ColumnElement, Select, Text, case, cast, func, null, select

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
from tunesmith_server.core.database import epoch_now
from tunesmith_server.models import ApiKeyRow, JobRow

from ..pages import json_of
from . import stored_job

MAX_DOCUMENT = 8 * 1024
"""Maximum number of characters of a job's recipe or method, as JSON, in a list of jobs."""

_COLUMNS = (
    *("id", "created_at", "finished_at", "model", "fine_tuned_model", "state", "training_file"),
    *("validation_file", "trained_tokens", "seed", "suffix", "phase", "adapter_id", "attempt"),
    *("step", "total_steps", "cancel_requested", "stop_requested", "forked_from", "forked_step"),
    *("retry_of", "error", "evaluation", "document_version", "started_at", "health"),
    *("last_metrics", "priority", "interactive", "worker_labels", "needs_bytes"),
    *("owner", "name", "pinned", "queued_at", "lease_owner", "measured_at", "measured_step"),
)
_DOCUMENTS = ("recipe", "method", "hyperparameters", "labels")
_MAY_BE_LARGE = ("recipe", "method")


@cache
def query(with_curve: bool = False) -> Select[Any]:
    """Return the database query for the jobs of a list. The query leaves out large recipes and
    methods."""
    columns = [getattr(JobRow, name) for name in _COLUMNS]
    for name in _DOCUMENTS:
        text: ColumnElement[str] = cast(getattr(JobRow, name), Text)
        if name in _MAY_BE_LARGE:
            columns.append((func.length(text) > MAX_DOCUMENT).label(f"{name}_is_large"))
            text = case((func.length(text) <= MAX_DOCUMENT, text), else_=None)
        columns.append(text.label(f"{name}_text"))
    columns.append((JobRow.curve if with_curve else null()).label("curve"))
    columns += [ApiKeyRow.name.label("owner_name"), epoch_now().label("read_at")]
    return select(*columns).outerjoin(ApiKeyRow, ApiKeyRow.id == JobRow.owner)


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
    documents = {name: _json_in(getattr(row, f"{name}_text")) for name in _DOCUMENTS}
    columns = SimpleNamespace(**{**row._mapping, **documents, "notes": None})
    return stored_job.to_wire(cast_type(JobRow, columns))


def _json_in(text: str | None) -> Any:  # Any: JSON
    try:
        return from_json(text) if text else None
    except ValueError:
        return text


def _item(row: Any) -> bytes:  # Any: a row of `query`
    state, version = JobState(row.state), row.document_version
    omitted = [name for name in _MAY_BE_LARGE if getattr(row, f"{name}_is_large")]
    is_large_method = "method" in omitted  # only a grader is large
    settings = _settings(row.hyperparameters_text, row.method_text, version, is_large_method)
    recipe = b"{}" if "recipe" in omitted else _recipe(row.recipe_text, version)
    item = {
        "id": row.id,
        "object": "fine_tuning.job",
        "created_at": int(row.created_at),
        "finished_at": int(row.finished_at) if row.finished_at else None,
        "organization_id": "tunesmith",
        "status": wire_status(state),
        "error": JobError.model_validate(row.error) if row.error else None,
        "integrations": None,
        "state": state,
        "notes": None,
        "curve": row.curve,
        "evaluation": stored_job.evaluation(row.evaluation),
        **stored_job.plain_columns(row),
        "queue_position": None,
        "waiting_because": None,
        "estimated_start": None,
        "omitted": omitted,
    }
    documents = settings + b',"metadata":' + _labels(row.labels_text) + b',"recipe":' + recipe
    return to_json(item)[:-1] + documents + b"}"


@lru_cache(maxsize=1024)
def _settings(text: str, method_text: str | None, version: int, is_large_method: bool) -> bytes:
    """Return the fields `hyperparameters` and `method` of a job as JSON, to append to the job's
    other fields. Raises Unreadable."""
    stored = from_json(text)
    hyperparameters = {name: stored[name] for name in Hyperparameters.model_fields}
    is_reinforcement = False
    if is_large_method:
        method: Any = {"type": "reinforcement"}  # Any: JSON
    else:
        method = from_json(method_text) if method_text else None
        if method is not None:
            read = read_document(Method, method, "method", version=version)
            is_reinforcement = read.type == "reinforcement"
        model = ReinforcementHyperparameters if is_reinforcement else Hyperparameters
        read_document(model, stored, "hyperparameters", version=version)
        if not is_reinforcement:
            method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    members = {"hyperparameters": hyperparameters, "method": method}
    return b"," + to_json(members)[1:-1]


@lru_cache(maxsize=1024)
def _recipe(text: str, version: int) -> bytes:
    """Return the JSON of a stored recipe, with the field names and the defaults of this release.
    Raises Unreadable."""
    document = from_json(text)
    return read_document(Recipe, document, "recipe", version=version).model_dump_json().encode()


@lru_cache(maxsize=1024)
def _labels(text: str | None) -> bytes:
    labels = from_json(text) if text else None
    if not all(isinstance(value, str) for value in (labels or {}).values()):
        raise TypeError("metadata: a value is not a string")
    return to_json(labels)
