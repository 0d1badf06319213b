"""Routes /healthz (the process answers) and /readyz (the service accepts work)."""

from __future__ import annotations

from fastapi import APIRouter, Response

from tunesmith_schema import ErrorCode
from tunesmith_schema.queue import TRAIN_QUEUE
from tunesmith_server.core.errors import Unavailable
from tunesmith_server.services import workers

from .deps import ReaderDep, TransactionRoute

router = APIRouter(tags=["health"], route_class=TransactionRoute)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Return 200 while the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(session: ReaderDep, response: Response) -> dict[str, object]:
    """Return 200 if the database answers and a train worker accepts jobs, else 503."""
    live, idle = workers.ready(session), workers.not_ready(session)
    if not live.get(TRAIN_QUEUE):
        if idle:
            raise Unavailable(
                ErrorCode.UNAVAILABLE,
                "no train worker accepts jobs: "
                + "; ".join(f"{worker_id}: {reason}" for worker_id, reason in sorted(idle.items())),
                hint="fix the reason, or start another worker; the worker's log has details",
            )
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            "no train worker has reported in the last 35 s",
            hint="start one with `tunesmith worker`, and wait some seconds",
        )
    return {"status": "ready", "workers": live, "not_ready": idle}
