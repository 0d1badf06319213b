"""Routes under /internal/evaluations, for training workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from tunesmith_schema import ClaimRequest
from tunesmith_schema.bounds import MAX_STEP
from tunesmith_schema.evaluations import (
    EvaluationClaim,
    EvaluationLease,
    EvaluationOutcome,
    EvaluationRenewal,
)
from tunesmith_server.services.catalogue import evaluation_leases
from tunesmith_server.services.leasing import worker_access

from .bounds import IdPath
from .deps import ReaderDep, SessionDep, StateDep, WorkerDep, WorkerRoute, bulk
from .files import send_blob

router = APIRouter(
    prefix="/evaluations", tags=["internal"], include_in_schema=False, route_class=WorkerRoute
)


@router.post("/claim", response_model=None)
def claim(
    state: StateDep, session: SessionDep, worker: WorkerDep, body: ClaimRequest
) -> EvaluationClaim | Response:
    """Lease the oldest evaluation that the worker can run, unless a job has waited longer. Return
    204 if there is no such evaluation."""
    worker_access.check_self(worker, body.worker_id, "train")
    claimed = evaluation_leases.claim(session, state.settings, body.worker_id)
    return claimed or Response(status_code=204)


@router.post("/{evaluation_id}/renew")
def renew(
    state: StateDep,
    session: SessionDep,
    worker: WorkerDep,
    evaluation_id: IdPath,
    body: EvaluationLease,
) -> EvaluationRenewal:
    """Extend the lease of an evaluation. If the evaluation was cancelled, refuse the request."""
    worker_access.check_self(worker, body.worker_id, "train")
    return evaluation_leases.renew(session, state.settings, evaluation_id, body)


@router.get("/{evaluation_id}/files/{sha256}")
@bulk
def model_file(
    state: StateDep,
    session: ReaderDep,
    worker: WorkerDep,
    evaluation_id: IdPath,
    sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")],
    fence: Annotated[int, Query(ge=1, le=MAX_STEP)],
) -> Response:
    """Return one file of a model that the claimed evaluation needs. The claim lists these files."""
    lease = EvaluationLease(worker_id=worker.worker_id, fence=fence)
    file = evaluation_leases.model_file(session, state.settings, evaluation_id, lease, sha256)
    return send_blob(state.storage, file.sha256, file.bytes, file.name, None)


@router.post("/{evaluation_id}/outcome")
def outcome(
    state: StateDep,
    session: SessionDep,
    worker: WorkerDep,
    evaluation_id: IdPath,
    body: EvaluationOutcome,
) -> dict[str, bool]:
    """End the evaluation with a result or a failure, or release it for another worker."""
    worker_access.check_self(worker, body.worker_id, "train")
    evaluation_leases.finish(session, state.settings, state.wake_ups, evaluation_id, body)
    return {"stored": True}
