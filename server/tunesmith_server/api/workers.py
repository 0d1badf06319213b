"""Routes under /v1/workers and /v1/reservations: list, drain and reserve training workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from tunesmith_schema import (
    DrainRequest,
    Page,
    Reservation,
    ReservationCreate,
    ReservationDeleted,
    WorkerStatus,
)
from tunesmith_server.scheduling import drains, overview

from .bounds import IdPath
from .deps import CallerDep, KeyRoute, PrincipalDep, ReaderDep, SessionDep, StateDep
from .queue import visible_to

router = APIRouter(tags=["workers"], route_class=KeyRoute)

WorkerName = Annotated[str, Path(min_length=1, max_length=255)]


@router.get("/workers")
def list_workers(
    principal: PrincipalDep, state: StateDep, session: ReaderDep
) -> Page[WorkerStatus]:
    """List the training workers: host, device, running job, and the reason if a worker takes no
    job."""
    return Page(data=overview.workers(session, state.queue_view.get(), visible_to(principal)))


@router.post("/workers/{worker}/drain")
def drain(
    caller: CallerDep, session: SessionDep, worker: WorkerName, body: DrainRequest | None = None
) -> Reservation:
    """Drain a worker, or all workers of a host. The running jobs of a drained worker save a resume
    point and are queued again. A drained worker starts no jobs."""
    return drains.drain(session, worker, (body or DrainRequest()).reason, caller)


@router.delete("/workers/{worker}/drain")
def undrain(session: SessionDep, worker: WorkerName) -> Page[Reservation]:
    """Let a drained worker or host take jobs again."""
    return Page(data=drains.undrain(session, worker))


@router.get("/reservations")
def list_reservations(principal: PrincipalDep, session: ReaderDep) -> Page[Reservation]:
    """List the active and the future reservations and drains. The reservations of other projects
    are listed without project and reason."""
    return Page(data=drains.list_all(session, visible_to(principal)))


@router.post("/reservations")
def reserve(caller: CallerDep, session: SessionDep, body: ReservationCreate) -> Reservation:
    """Reserve a worker or a host for a project, or for maintenance."""
    return drains.reserve(session, body, caller)


@router.delete("/reservations/{reservation_id}")
def delete_reservation(session: SessionDep, reservation_id: IdPath) -> ReservationDeleted:
    drains.delete(session, reservation_id)
    return ReservationDeleted(id=reservation_id)
