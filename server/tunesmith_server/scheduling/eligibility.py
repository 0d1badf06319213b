"""Rules for the jobs that a worker can run: base model, device memory and labels.

Each rule exists as an SQL condition, for the claim, and as a function, for forecasts. A test checks
that condition and function give the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, true
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.orm.util import AliasedClass

from tunesmith_schema import JobState
from tunesmith_server.core.database import constant, epoch_now
from tunesmith_server.models import JobRow, WorkerRow

Jobs = type[JobRow] | AliasedClass[JobRow]


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """Properties of a worker that a job can require."""

    models: frozenset[str] = frozenset()
    """Names of the base models on the worker's host."""
    labels: tuple[tuple[str, str], ...] = ()
    device_bytes: int | None = None
    """Memory of the worker's device in bytes; None if unknown."""


def abilities(worker: WorkerRow | None) -> Abilities:
    if worker is None:
        return Abilities()
    labels = worker.labels if isinstance(worker.labels, dict) else {}
    return Abilities(
        models=frozenset(worker.models),
        labels=tuple(sorted(labels.items())),
        device_bytes=worker.device_bytes,
    )


def packed(labels: Mapping[str, str]) -> str | None:
    """Return labels as text, `|gpu=h100||rack=2|`; None without labels. Names and values have no
    `|` or `=`."""
    return "".join(f"|{name}={value}|" for name, value in sorted(labels.items())) or None


def unpacked(text: str | None) -> dict[str, str]:
    pairs = (part.split("=", 1) for part in (text or "").strip("|").split("||") if part)
    return dict(pairs)


def may_start(jobs: Jobs = JobRow) -> ColumnElement[bool]:
    """Return the SQL condition that the job is queued and its retry delay is over."""
    in_time = or_(jobs.not_before.is_(None), jobs.not_before <= epoch_now())
    return and_(jobs.state == constant(JobState.QUEUED), in_time)


def can_run(worker: Abilities, jobs: Jobs = JobRow) -> ColumnElement[bool]:
    """Return the SQL condition that the worker can run the job."""
    return and_(has_model(worker.models, jobs), has_memory(worker, jobs), has_labels(worker, jobs))


def has_model(models: frozenset[str], jobs: Jobs = JobRow) -> ColumnElement[bool]:
    """Return the SQL condition that the base model is a folder on the worker's host, or that any
    worker can fetch it (a Hugging Face id, or weights that Tunesmith trained)."""
    return or_(
        jobs.base_adapter_id.is_not(None),
        jobs.model.contains("/"),
        jobs.model.in_(sorted(models)),
    )


def has_memory(worker: Abilities, jobs: Jobs = JobRow) -> ColumnElement[bool]:
    if worker.device_bytes is None:
        return true()
    return or_(jobs.needs_bytes.is_(None), jobs.needs_bytes <= worker.device_bytes)


def has_labels(worker: Abilities, jobs: Jobs = JobRow) -> ColumnElement[bool]:
    """Return the SQL condition that the worker has all labels that the job asks for."""
    left: InstrumentedAttribute[str | None] | ColumnElement[str] = jobs.worker_labels
    for name, value in worker.labels:
        left = func.replace(left, f"|{name}={value}|", "")
    return or_(jobs.worker_labels.is_(None), left == "")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Properties that a worker must have to run a job."""

    model: str
    is_local: bool
    """True if the base model must be a folder on the worker's host."""
    labels: tuple[tuple[str, str], ...] = ()
    bytes: int | None = None


def needs_of(job: JobRow) -> Needs:
    return Needs(
        model=job.model,
        is_local=job.base_adapter_id is None and "/" not in job.model,
        labels=tuple(sorted(unpacked(job.worker_labels).items())),
        bytes=job.needs_bytes,
    )


def fits(worker: Abilities, needs: Needs) -> bool:
    """Return True if the worker can run the job; `can_run` has the same rule as SQL."""
    return not (lacks_model(worker, needs) or lacks_memory(worker, needs)) and not (
        lacks_labels(worker, needs)
    )


def lacks_model(worker: Abilities, needs: Needs) -> bool:
    return needs.is_local and needs.model not in worker.models


def lacks_memory(worker: Abilities, needs: Needs) -> bool:
    return None not in (worker.device_bytes, needs.bytes) and (
        (needs.bytes or 0) > (worker.device_bytes or 0)
    )


def lacks_labels(worker: Abilities, needs: Needs) -> bool:
    return not set(needs.labels) <= set(worker.labels)
