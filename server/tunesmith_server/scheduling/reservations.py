"""Drains and reservations: times in which a worker takes no jobs, or only jobs of one project."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from sqlalchemy import ColumnElement, Select, String, and_, bindparam, exists, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tunesmith_server.core.database import epoch_now
from tunesmith_server.models import JobRow, ReservationRow, WorkerRow

from .limits import HELD


def active() -> ColumnElement[bool]:
    """Return the SQL condition that the reservation has begun and has not ended."""
    in_time = or_(ReservationRow.ends_at.is_(None), ReservationRow.ends_at > epoch_now())
    return and_(ReservationRow.starts_at <= epoch_now(), in_time)


def names_of(worker_id: str, worker: WorkerRow | None) -> dict[str, str]:
    """Return the query parameters that select the reservations of a worker: its id and its host."""
    return {"worker": worker_id, "host": worker.host if worker else worker_id}


def of_worker(session: Session, names: dict[str, str]) -> list[ReservationRow]:
    """Return the active reservations of a worker and of its host."""
    return list(session.scalars(_of_workers(), names))


def refuse(project_id: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Return the SQL condition that a reservation forbids the worker to run the project's jobs.

    The query that uses the condition has parameters for the worker's id and host (`names_of`).
    """
    other = or_(ReservationRow.project_id.is_(None), ReservationRow.project_id != project_id)
    return exists().where(_is_named(), active(), other)


def _is_named() -> ColumnElement[bool]:
    names = [bindparam(name, type_=String()) for name in ("worker", "host")]
    return ReservationRow.worker.in_(names)


@cache  # each claim asks
def _of_workers() -> Select[ReservationRow]:
    query = select(ReservationRow).where(_is_named(), active())
    return query.order_by(ReservationRow.starts_at)


def refuses(reservations: Iterable[ReservationRow], project_id: str) -> ReservationRow | None:
    """Return a reservation that forbids the worker to run the project's jobs, if there is one."""
    for reservation in reservations:
        if reservation.project_id != project_id:
            return reservation
    return None


def jobs_to_move(session: Session) -> list[tuple[str, str]]:
    """Return the running jobs whose worker is now drained or reserved for another project, each
    with the reason."""
    rows = session.execute(
        select(JobRow.id, ReservationRow)
        .join(WorkerRow, WorkerRow.worker_id == JobRow.lease_owner)
        .join(ReservationRow, ReservationRow.worker.in_([WorkerRow.worker_id, WorkerRow.host]))
        .where(
            JobRow.state.in_(HELD),
            JobRow.yield_reason.is_(None),
            or_(
                ReservationRow.project_id.is_(None),
                ReservationRow.project_id != JobRow.project_id,
            ),
            active(),
        )
    )
    return [(job_id, reason_of(reservation)) for job_id, reservation in rows]


def reason_of(reservation: ReservationRow, *, is_own: bool = False) -> str:
    """Return a text for users that tells why the worker takes no other jobs.

    `is_own`: True if the user belongs to the project that reserved the worker. For other users, the
    text leaves out this project and the reason for its reservation.
    """
    project_id = reservation.project_id
    if project_id is not None and not is_own:
        return f"{reservation.worker} is reserved for another project"
    what = "drained" if project_id is None else f"reserved for {project_id}"
    return f"{reservation.worker} is {what}" + (
        f" ({reservation.reason})" if reservation.reason else ""
    )
