"""The state of the queue at one moment, read from the database: projects, live workers, running
jobs and waiting jobs. Forecasts, reasons and pre-emption use a snapshot. `place` returns a job's
place by the rules of `order.py`; a test checks that `place` and the SQL of `order.py` give the same
order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import EvaluationStatus, JobState
from tunesmith_schema.queue import TRAIN_QUEUE
from tunesmith_server.models import (
    ApiKeyRow,
    EvaluationRow,
    JobRow,
    ProjectRow,
    ReservationRow,
    WorkerRow,
)
from tunesmith_server.models.scope import all_projects

from . import limits, reservations, usage
from .eligibility import Abilities, Needs, abilities, fits, unpacked
from .limits import HELD
from .order import of_jobs

READY_SECONDS = 35.0
"""Time after which a silent worker counts as gone: three missed reports, one every 10 s."""
MAX_WAITING = 10_000
"""Maximum number of waiting jobs that are read.

The first jobs of each project are read, so that a project with very many jobs does not crowd out
the jobs of other projects.
"""

Place = tuple[bool, bool, float, int, float, str]


@dataclass(frozen=True, kw_only=True)
class Project:
    id: str
    name: str
    weight: float
    guaranteed_devices: int
    max_running_jobs: int | None
    usage: float | None
    """Logarithm of the project's usage, in which older device-time counts less (usage.py)."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    id: str
    host: str
    abilities: Abilities
    not_ready: str | None
    reservations: Sequence[ReservationRow]

    def takes(self, project_id: str, needs: Needs) -> bool:
        """Return True if the worker, once it is free, may run a job of this project with these
        needs."""
        refused = self.not_ready or reservations.refuses(self.reservations, project_id)
        return not refused and fits(self.abilities, needs)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    id: str
    project_id: str
    owner: str
    model: str
    method: str
    training_file: str
    needs: Needs
    priority: int
    interactive: bool
    created_at: float
    not_before: float | None
    done_seconds: float
    """Device-time of the job's earlier attempts."""
    step: int
    total_steps: int | None


@dataclass(frozen=True, kw_only=True)
class Running(Waiting):
    worker_id: str | None
    state: str
    claimed_at: float
    measured_at: float | None
    measured_step: int | None
    charged_until: float
    yields: bool
    """True if the worker has been asked to free its device."""
    preempted_at: float | None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    now: float
    projects: Mapping[str, Project]
    workers: Sequence[Worker]
    running: Sequence[Running]
    waiting: Sequence[Waiting]
    """Queued jobs of active projects; the jobs of each project are in the order of the queue."""
    evaluating: frozenset[str] = frozenset()
    """Ids of the workers that run an evaluation."""
    key_limits: Mapping[str, int] = field(default_factory=dict)
    """Values of `max_running_jobs` of the API keys that have this limit; the keys of the mapping
    are ids of API keys."""
    over_device_hours: frozenset[str] = frozenset()
    """Ids of the projects and keys that have used up their device-hours."""

    def devices(self) -> Counter[str]:
        """Return the number of devices that each project uses: a running job uses one device."""
        return Counter(job.project_id for job in self.running)

    def free_workers(self) -> list[Worker]:
        busy = {job.worker_id for job in self.running} | self.evaluating
        return [worker for worker in self.workers if worker.id not in busy]


def place(project: Project, devices: int, usage_log: float | None, job: Waiting) -> Place:
    """Return the job's place in the queue; smaller tuples come first. `devices`: number of the
    project's running jobs."""
    return (
        not job.interactive,
        devices >= project.guaranteed_devices,
        (usage.NO_USAGE if usage_log is None else usage_log) - math.log(project.weight),
        -job.priority,
        job.created_at,
        job.id,
    )


_COLUMNS = (
    *(JobRow.id, JobRow.project_id, JobRow.owner, JobRow.model, JobRow.method_name),
    *(JobRow.training_file, JobRow.base_adapter_id, JobRow.worker_labels, JobRow.needs_bytes),
    *(JobRow.priority, JobRow.interactive, JobRow.created_at, JobRow.not_before),
    *(JobRow.device_seconds, JobRow.step, JobRow.total_steps),
)
_HELD_COLUMNS = (
    *(JobRow.lease_owner, JobRow.state, JobRow.claimed_at, JobRow.measured_at),
    *(JobRow.measured_step, JobRow.charged_until, JobRow.yield_reason, JobRow.preempted_at),
)


def read(session: Session, *, only_urgent: bool = False) -> Snapshot:
    """Read the queue. With `only_urgent`, read only those waiting jobs that may pre-empt running
    jobs."""
    now = usage.database_now(session)
    turn = func.row_number().over(partition_by=JobRow.project_id, order_by=of_jobs(JobRow))
    active = select(ProjectRow.id).where(ProjectRow.archived_at.is_(None))
    numbered = select(*_COLUMNS, turn.label("turn")).where(
        JobRow.state == JobState.QUEUED, JobRow.project_id.in_(active)
    )
    if only_urgent:
        numbered = numbered.where(is_urgent())
    jobs = numbered.subquery()
    queued = select(jobs).order_by(jobs.c.turn, jobs.c.project_id).limit(MAX_WAITING)
    evaluating = select(EvaluationRow.lease_owner).where(
        EvaluationRow.status == EvaluationStatus.RUNNING, EvaluationRow.lease_owner.is_not(None)
    )
    held = select(*_COLUMNS, *_HELD_COLUMNS).where(JobRow.state.in_(HELD))
    key_limits = select(ApiKeyRow.id, ApiKeyRow.max_running_jobs).where(
        ApiKeyRow.max_running_jobs.is_not(None)
    )
    return Snapshot(
        now=now,
        projects=_projects(session),
        workers=_workers(session, now),
        running=[_running(row, now) for row in session.execute(all_projects(held))],
        waiting=[Waiting(**_fields(row)) for row in session.execute(all_projects(queued))],
        evaluating=frozenset(filter(None, session.scalars(all_projects(evaluating)))),
        key_limits={key: limit for key, limit in session.execute(key_limits) if limit is not None},
        over_device_hours=frozenset(session.scalars(limits.over_device_hours())),
    )


def is_urgent() -> Any:  # Any: SQLAlchemy's own; a condition on JobRow
    """Return the SQL condition that the waiting job may pre-empt other jobs."""
    guaranteed = select(ProjectRow.id).where(ProjectRow.guaranteed_devices > 0)
    return or_(JobRow.interactive.is_(True), JobRow.priority > 0, JobRow.project_id.in_(guaranteed))


def _projects(session: Session) -> dict[str, Project]:
    return {
        row.id: Project(
            id=row.id,
            name=row.name,
            weight=row.weight,
            guaranteed_devices=row.guaranteed_devices,
            max_running_jobs=row.max_running_jobs,
            usage=row.usage_log,
        )
        for row in session.scalars(select(ProjectRow))
    }


def _workers(session: Session, now: float) -> list[Worker]:
    reserved = list(session.scalars(select(ReservationRow).where(reservations.active())))
    live = select(WorkerRow).where(
        WorkerRow.queue == TRAIN_QUEUE, WorkerRow.last_seen > now - READY_SECONDS
    )
    return [
        Worker(
            id=row.worker_id,
            host=row.host,
            abilities=abilities(row),
            not_ready=row.not_ready,
            reservations=[one for one in reserved if one.worker in (row.worker_id, row.host)],
        )
        for row in session.scalars(live.order_by(WorkerRow.worker_id))
    ]


def _fields(row: Any) -> dict[str, Any]:  # Any: a row of columns, and their values
    return {
        "id": row.id,
        "project_id": row.project_id,
        "owner": row.owner,
        "model": row.model,
        "method": row.method_name,
        "training_file": row.training_file,
        "needs": Needs(
            model=row.model,
            is_local=row.base_adapter_id is None and "/" not in row.model,
            labels=tuple(sorted(unpacked(row.worker_labels).items())),
            bytes=row.needs_bytes,
        ),
        "priority": row.priority,
        "interactive": row.interactive,
        "created_at": row.created_at,
        "not_before": row.not_before,
        "done_seconds": row.device_seconds,
        "step": row.step,
        "total_steps": row.total_steps,
    }


def _running(row: Any, now: float) -> Running:  # Any: a row of columns
    return Running(
        **_fields(row),
        worker_id=row.lease_owner,
        state=row.state,
        claimed_at=now if row.claimed_at is None else row.claimed_at,
        measured_at=row.measured_at,
        measured_step=row.measured_step,
        charged_until=now if row.charged_until is None else row.charged_until,
        yields=row.yield_reason is not None,
        preempted_at=row.preempted_at,
    )
