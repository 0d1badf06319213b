"""Is the process alive, and can it take work?"""

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
    """200 as long as the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(session: ReaderDep, response: Response) -> dict[str, object]:
    """200 once the database answers and a train worker takes jobs; 503 until then."""
    live, idle = workers.ready(session), workers.not_ready(session)
    if not live.get(TRAIN_QUEUE):
        if idle:
            raise Unavailable(
                ErrorCode.UNAVAILABLE,
                "no train worker takes jobs: "
                + "; ".join(f"{worker_id}: {why}" for worker_id, why in sorted(idle.items())),
                hint="mend that, or start another worker; its log has more",
            )
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            "no train worker has said hello in the last 35 s",
            hint="is one starting? `tunesmith worker` starts one",
        )
    return {"status": "ready", "workers": live, "not_ready": idle}
