"""Routes /healthz (the process answers) and /readyz (the service accepts work)."""

from __future__ import annotations

from anyio import from_thread
from fastapi import APIRouter, Request
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode
from tunesmith_schema.queue import TRAIN_QUEUE
from tunesmith_server.core.errors import Unauthorized, Unavailable
from tunesmith_server.core.planes import Plane
from tunesmith_server.services import keys, workers

from .deps import ReaderDep, TransactionRoute, has_worker_token, state_of


class HealthRoute(TransactionRoute):
    """Route with its own thread pool."""

    plane = Plane.HEALTH


router = APIRouter(tags=["health"], route_class=HealthRoute)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Return 200: the process answers requests."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(session: ReaderDep, request: Request) -> dict[str, object]:
    """Return 200 if the database answers and a training worker accepts jobs, else 503. Only
    requests with an API key or the worker token get details: the workers, the reason for a 503, and
    the state of inference."""
    live, idle = workers.ready(session), workers.not_ready(session)
    trusted = _is_trusted(session, request)
    if live.get(TRAIN_QUEUE):
        if not trusted:
            return {"status": "ready"}
        details = {"workers": live, "not_ready": idle, "inference": _inference(request)}
        return {"status": "ready", **details}
    if not trusted:
        raise Unavailable(
            ErrorCode.UNAVAILABLE, "not ready",
            hint="send an API key to see the reason",
        )  # fmt: skip
    if idle:
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            "no training worker accepts jobs: "
            + "; ".join(f"{worker_id}: {reason}" for worker_id, reason in sorted(idle.items())),
            hint="fix the reason, or start another worker; the worker's log has details",
        )
    raise Unavailable(
        ErrorCode.UNAVAILABLE,
        "no training worker has reported in the last 35 s",
        hint="start a worker with `tunesmith worker`, and wait some seconds",
    )


def _inference(request: Request) -> dict[str, str | None]:
    status = from_thread.run(state_of(request).inference.status)
    return {"status": status.status, "waiting_for": status.waiting_for}


def _is_trusted(session: Session, request: Request) -> bool:
    if has_worker_token(request):
        return True
    try:
        keys.authenticate(session, request.headers.get("authorization"))
    except Unauthorized:
        return False
    return True
