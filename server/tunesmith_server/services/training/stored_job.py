"""Read a job from its row, which another release may have written. The functions return one
document (recipe, hyperparameters or method) or the whole job as the API returns it. A row that this
release cannot read is shown with the error `unreadable`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy.orm import object_session

from tunesmith_schema import (
    ErrorCategory,
    ErrorCode,
    EvaluationSummary,
    Hyperparameters,
    Job,
    JobError,
    JobState,
    Method,
    MethodName,
    Recipe,
    ReinforcementHyperparameters,
    Scheduling,
    wire_status,
)
from tunesmith_schema.documents import Unreadable, bad_fields, read_document, upgraded
from tunesmith_server.models import JobRow
from tunesmith_server.scheduling import limits, speed, usage
from tunesmith_server.scheduling.eligibility import unpacked

from .. import keys
from ..results import job_health, result_files

READ_ERRORS = (ValueError, TypeError, KeyError, AttributeError)
"""Errors of code that reads a damaged row. pydantic's ValidationError is a ValueError."""
HINT = "another release wrote this job: install that release, or create the job again"

T = TypeVar("T")


def recipe(row: JobRow, ignored: list[str] | None = None) -> Recipe:
    """Return the job's recipe. Raises Unreadable."""
    return read_document(
        Recipe, row.recipe, "recipe", version=row.document_version, ignored=ignored
    )


def method(row: JobRow, ignored: list[str] | None = None) -> Method | None:
    """Return the job's method. Raises Unreadable."""
    if row.method is None:
        return None
    return read_document(
        Method, row.method, "method", version=row.document_version, ignored=ignored
    )


def hyperparameters(
    row: JobRow, ignored: list[str] | None = None
) -> Hyperparameters | ReinforcementHyperparameters:
    """Return the job's hyperparameters, all fields included. Raises Unreadable."""
    reinforcement = method_of(row) == "reinforcement"
    model = ReinforcementHyperparameters if reinforcement else Hyperparameters
    document = row.hyperparameters
    if isinstance(document, dict) and not Hyperparameters.model_fields.keys() <= document.keys():
        missing = sorted(Hyperparameters.model_fields.keys() - document.keys())
        raise Unreadable(f"hyperparameters: missing {', '.join(missing)}")
    return read_document(
        model, document, "hyperparameters", version=row.document_version, ignored=ignored
    )


def method_of(row: JobRow) -> MethodName:
    """Return the name of the training method. Raises Unreadable."""
    if row.method is None:
        return "supervised"
    name = row.method.get("type") if isinstance(row.method, dict) else None
    if name == "reinforcement":
        return "reinforcement"
    if name == "supervised":
        return "supervised"
    raise Unreadable(f"method.type: unknown method {name!r}")


def same_documents(one: JobRow, other: JobRow, names: tuple[str, ...]) -> bool:
    """Return True if the rows have equal values in these columns, even if their formats differ."""
    return all(
        upgraded(getattr(one, name), one.document_version)
        == upgraded(getattr(other, name), other.document_version)
        for name in names
    )


def to_wire(row: JobRow, now: float | None = None) -> Job:
    """Return the job. If this release cannot read the row, return the job with the readable
    values. `now`: the database's time; if it is None, the function reads the time if necessary."""
    try:
        return _to_wire(row, now)
    except READ_ERRORS as error:
        return _unreadable(row, error, now)


def _to_wire(row: JobRow, now: float | None) -> Job:
    state = JobState(row.state)
    full = hyperparameters(row)
    openai = Hyperparameters(**full.model_dump(include=set(Hyperparameters.model_fields)))
    stored_method = method(row)
    shown_method: dict[str, Any] | None = row.method  # Any: JSON
    if stored_method is None or stored_method.type == "supervised":
        shown_method = {
            "type": "supervised",
            "supervised": {"hyperparameters": openai.model_dump(mode="json")},
        }
    return Job(
        id=row.id,
        created_at=int(row.created_at),
        finished_at=int(row.finished_at) if row.finished_at else None,
        status=wire_status(state),
        hyperparameters=openai,
        method=shown_method,
        error=JobError.model_validate(row.error) if row.error else None,
        evaluation=evaluation(row.evaluation),
        metadata=row.labels,
        state=state,
        recipe=recipe(row),
        notes=row.notes,
        **plain_columns(row, now),
    )


def evaluation(stored: Any) -> EvaluationSummary | None:  # Any: JSON
    """Return the summary of the job's evaluation; None if there is none or it cannot be read."""
    return _read(lambda: EvaluationSummary.model_validate(stored) if stored else None)


def scheduling(row: JobRow) -> Scheduling:
    """Return the settings that decide when and on which worker the job runs."""
    return Scheduling(
        priority=row.priority or 0,
        interactive=bool(row.interactive),
        worker_labels=unpacked(row.worker_labels),
        device_bytes=row.needs_bytes,
    )


# Any: a JobRow, or columns of a list; values
def plain_columns(row: Any, now: float | None = None) -> dict[str, Any]:
    """Return the fields of a job that do not come from its recipe, hyperparameters or method."""
    return {
        "model": row.model,
        "fine_tuned_model": row.fine_tuned_model,
        "training_file": row.training_file,
        "validation_file": row.validation_file,
        "trained_tokens": row.trained_tokens,
        "seed": row.seed,
        "suffix": row.suffix,
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
        "scheduling": scheduling(row),
        "owner": _owner_name(row),
        "owner_id": row.owner,
        "name": row.name,
        "pinned": bool(row.pinned),
        "queued_at": _read(lambda: int(row.queued_at) if row.queued_at else None),
        "worker_id": worker_of(row),
        "estimated_finish": _read(lambda: estimated_finish(row, now)),
        "started_at": _read(lambda: int(row.started_at) if row.started_at else None),
        "health": job_health.stored(row.health),
        "last_metrics": row.last_metrics or {},
        "result_files": result_files.ids_of(row.id, row.state, bool(row.last_metrics)),
    }


def worker_of(row: Any) -> str | None:  # Any: a JobRow, or columns of a list
    """Return the name of the worker that holds the job."""
    name: str | None = row.lease_owner if row.state in limits.HELD else None
    return name


# Any: a JobRow, or columns of a list
def estimated_finish(row: Any, now: float | None = None) -> int | None:
    """Return when a running job's training ends at the mean speed of this attempt, in Unix seconds.
    The speed and the time are measured by the database's clock."""
    if row.state != JobState.RUNNING or row.measured_at is None or not row.total_steps:
        return None
    now = _database_now(row) if now is None else now
    per_step = speed.seconds_per_step(row, now)
    return None if per_step is None else int(now + per_step * max(0, row.total_steps - row.step))


def _database_now(row: Any) -> float:  # Any: a JobRow, or columns of a list
    if hasattr(row, "read_at"):
        return float(row.read_at)
    session = object_session(row)
    return usage.database_now(session) if session else time.time()


def _owner_name(row: Any) -> str | None:  # Any: a JobRow, or columns of a list
    if hasattr(row, "owner_name"):
        name: str | None = row.owner_name
        return name
    session = object_session(row)
    return keys.name_of(session, row.owner) if session else None


def _unreadable(row: JobRow, cause: Exception, now: float | None) -> Job:
    """Return a job whose row this release cannot read: its readable values, its state if this
    release knows the state, and the error `unreadable`. Settings that cannot be read are shown as
    defaults."""
    state = _read(lambda: JobState(row.state)) or JobState.FAILED
    message = f"this release cannot read the job's row: {cause}"[:2000]
    if own := _read(lambda: JobError.model_validate(row.error) if row.error else None):
        if own.code == ErrorCode.UNREADABLE and own.message:
            message = own.message
        elif own.message:
            message = f"{message}. The job itself failed: {own.message}"
    values: dict[str, Any] = {  # Any: column values
        "id": row.id,
        "created_at": _read(lambda: int(row.created_at)) or 0,
        "finished_at": _read(lambda: int(row.finished_at) if row.finished_at else None),
        "status": wire_status(state),
        "state": state,
        "hyperparameters": _read(
            lambda: Hyperparameters(
                **hyperparameters(row).model_dump(include=set(Hyperparameters.model_fields))
            )
        )
        or Hyperparameters(),
        "method": row.method if isinstance(row.method, dict) else None,
        "metadata": row.labels,
        "notes": row.notes,
        "recipe": _readable_recipe(row),
        "evaluation": evaluation(row.evaluation),
        "error": JobError(
            code=ErrorCode.UNREADABLE,
            message=message,
            category=ErrorCategory.INFRASTRUCTURE,
            hint=HINT,
        ),
    }
    try:
        return Job(**values, **plain_columns(row, now))
    except ValidationError as error:
        plain = {**values, **plain_columns(row, now)}
        return Job(**{**plain, **{name: _SHOWN_INSTEAD.get(name) for name in bad_fields(error)}})


_SHOWN_INSTEAD = {
    "model": "", "training_file": "", "seed": 0, "attempt": 0, "step": 0,
    "cancel_requested": False, "stop_requested": False, "pinned": False, "last_metrics": {},
    "result_files": [],
}  # fmt: skip
"""Values shown for required columns whose stored value has the wrong type. Optional columns with a
value of the wrong type are shown as null."""


def _readable_recipe(row: JobRow) -> Recipe:
    document = upgraded(row.recipe, row.document_version)
    if not isinstance(document, dict):
        return Recipe()
    for _ in range(2):
        try:
            return read_document(Recipe, document, "recipe")
        except Unreadable as error:
            cause = error.__cause__
            bad = bad_fields(cause) if isinstance(cause, ValidationError) else set()
            document = {name: value for name, value in document.items() if name not in bad}
    return Recipe()


def _read(value: Callable[[], T]) -> T | None:
    with suppress(*READ_ERRORS):
        return value()
    return None
