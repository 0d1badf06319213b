"""Drains and reservations of workers and hosts: create, end and list."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Reservation, ReservationCreate
from tunesmith_server.core.database import epoch_now, new_id
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.models import ProjectRow, ReservationRow, WorkerRow

from . import usage
from .reservations import active


def drain(session: Session, name: str, reason: str, by: str) -> Reservation:
    """Give no new jobs to a worker or a host until `undrain`. Draining twice is harmless."""
    _check_name(session, name)
    row = session.scalar(select(ReservationRow).where(*_drains(name)).limit(1))
    if row is None:
        row = ReservationRow(
            id=new_id("rsv"),
            worker=name,
            project_id=None,
            starts_at=usage.database_now(session),
            ends_at=None,
            reason=reason,
            created_by=by,
        )
        session.add(row)
    return to_wire(row)


def undrain(session: Session, name: str) -> list[Reservation]:
    """End the drains of a worker or a host, and return them."""
    rows = session.scalars(select(ReservationRow).where(*_drains(name))).all()
    now = usage.database_now(session)
    for row in rows:
        row.ends_at = now
    return [to_wire(row) for row in rows]


def reserve(session: Session, body: ReservationCreate, by: str) -> Reservation:
    """Reserve a worker or a host for a project, or for maintenance."""
    _check_name(session, body.worker)
    if body.ends_at is not None and body.ends_at <= body.starts_at:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"ends_at: {body.ends_at} is not after the start of the reservation",
            param="ends_at",
            hint="give a later end, or null for none",
        )
    if body.project_id is not None and session.get(ProjectRow, body.project_id) is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"project_id: no project {body.project_id!r}",
            param="project_id",
            hint="GET /v1/queue/projects lists all projects",
        )
    row = ReservationRow(
        id=new_id("rsv"),
        worker=body.worker,
        project_id=body.project_id,
        starts_at=float(body.starts_at),
        ends_at=None if body.ends_at is None else float(body.ends_at),
        reason=body.reason,
        created_by=by,
    )
    session.add(row)
    return to_wire(row)


def list_all(session: Session, sees: Callable[[str], bool]) -> list[Reservation]:
    """Return the active and the future reservations, ordered by their start. Reservations of
    projects that the caller may not see have only the worker and the times."""
    ahead = or_(ReservationRow.ends_at.is_(None), ReservationRow.ends_at > epoch_now())
    rows = session.scalars(select(ReservationRow).where(ahead).order_by(ReservationRow.starts_at))
    return [
        to_wire(row) if row.project_id is None or sees(row.project_id) else _of_another(row)
        for row in rows
    ]


def delete(session: Session, reservation_id: str) -> None:
    row = session.get(ReservationRow, reservation_id)
    if row is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no reservation {reservation_id!r}",
            hint="GET /v1/reservations lists all reservations",
        )
    session.delete(row)


def to_wire(row: ReservationRow) -> Reservation:
    return Reservation(
        id=row.id,
        worker=row.worker,
        project_id=row.project_id,
        starts_at=int(row.starts_at),
        ends_at=None if row.ends_at is None else int(row.ends_at),
        reason=row.reason,
    )


def _of_another(row: ReservationRow) -> Reservation:
    hidden = {"project_id": None, "reason": "reserved for another project"}
    return to_wire(row).model_copy(update=hidden)


def _drains(name: str) -> tuple[ColumnElement[bool], ...]:
    return ReservationRow.worker == name, ReservationRow.project_id.is_(None), active()


def _check_name(session: Session, name: str) -> None:
    known = select(WorkerRow.worker_id).where(
        or_(WorkerRow.worker_id == name, WorkerRow.host == name)
    )
    if session.scalar(known.limit(1)) is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no worker or host {name!r}",
            hint="GET /v1/workers lists the workers with their hosts",
        )
