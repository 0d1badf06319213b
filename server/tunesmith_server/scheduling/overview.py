"""The queue and the workers, in the format of the API. Jobs of other projects are shown without
their id."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import Queue, QueuedJob, WorkerState, WorkerStatus
from tunesmith_schema.queue import TRAIN_QUEUE
from tunesmith_server.models import ReservationRow, WorkerRow

from . import reservations, speed
from .snapshot import READY_SECONDS, Project, Running, Waiting
from .view import View

Sees = Callable[[str], bool]
"""Function that returns True if the caller may see the jobs and files of a project."""


def queue(view: View, sees: Sees, limit: int) -> Queue:
    """Return the running jobs and the first `limit` waiting jobs."""
    seen = view.snapshot
    last = len(seen.waiting) + 1
    waiting = sorted(seen.waiting, key=lambda job: (view.position(job) or last, job.created_at))
    return Queue(
        running=[
            _running(view, job, sees(job.project_id))
            for job in sorted(seen.running, key=lambda job: job.claimed_at)
        ],
        waiting=[_waiting(view, job, sees(job.project_id)) for job in waiting[:limit]],
        num_waiting=len(seen.waiting),
        devices=len(seen.workers),
        free_devices=sum(not worker.not_ready for worker in seen.free_workers()),
    )


def _running(view: View, job: Running, is_own: bool) -> QueuedJob:
    now = view.snapshot.now
    left, per_step = view.durations.known_remaining(job, now), speed.seconds_per_step(job, now)
    return QueuedJob(
        id=job.id if is_own else None,
        project=_name(view, job),
        model=job.model if is_own else None,
        priority=job.priority,
        interactive=job.interactive,
        worker=job.worker_id,
        started_at=int(job.claimed_at),
        estimated_end=None if left is None else int(now + left),
        step=job.step,
        total_steps=job.total_steps,
        steps_per_second=1 / per_step if per_step else None,
    )


def _waiting(view: View, job: Waiting, is_own: bool) -> QueuedJob:
    return QueuedJob(
        id=job.id if is_own else None,
        project=_name(view, job),
        model=job.model if is_own else None,
        priority=job.priority,
        interactive=job.interactive,
        queue_position=view.position(job),
        waiting_because=view.because(job) if is_own else None,
        estimated_start=view.estimated_start(job),
    )


def _name(view: View, job: Waiting) -> str:
    project: Project | None = view.snapshot.projects.get(job.project_id)
    return project.name if project else job.project_id


def workers(session: Session, view: View, sees: Sees) -> list[WorkerStatus]:
    """Return the training workers that have reported in the last day, ordered by host."""
    rows = session.scalars(
        select(WorkerRow)
        .where(WorkerRow.queue == TRAIN_QUEUE)
        .order_by(WorkerRow.host, WorkerRow.worker_id)
    )
    held = {job.worker_id: job for job in view.snapshot.running}
    reserved = session.scalars(select(ReservationRow).where(reservations.active())).all()
    return [_worker(row, view, held.get(row.worker_id), reserved, sees) for row in rows]


def _worker(
    row: WorkerRow,
    view: View,
    job: Running | None,
    reserved: Sequence[ReservationRow],
    sees: Sees,
) -> WorkerStatus:
    mine = [one for one in reserved if one.worker in (row.worker_id, row.host)]
    is_drained = any(one.project_id is None for one in mine)
    is_busy = job is not None or row.worker_id in view.snapshot.evaluating
    state = WorkerState.BUSY if is_busy else WorkerState.IDLE
    if row.last_seen <= view.snapshot.now - READY_SECONDS:
        state = WorkerState.GONE
    elif not is_busy and (is_drained or row.not_ready):
        state = WorkerState.DRAINED if is_drained else WorkerState.NOT_READY
    since = job.claimed_at if job else row.first_seen
    return WorkerStatus(
        id=row.worker_id,
        host=row.host,
        device=row.device,
        device_bytes=row.device_bytes,
        labels=row.labels if isinstance(row.labels, dict) else {},
        state=state,
        job_id=job.id if job and sees(job.project_id) else None,
        project=_name(view, job) if job else None,
        since=None if since is None else int(since),
        last_hello=int(row.last_seen),
        models=row.models,
        reason=row.not_ready or "; ".join(_reason(one, sees) for one in mine) or None,
        version=row.version,
    )


def _reason(reservation: ReservationRow, sees: Sees) -> str:
    project_id = reservation.project_id
    return reservations.reason_of(reservation, is_own=project_id is not None and sees(project_id))
