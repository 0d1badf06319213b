"""Routes under /internal, for workers. A worker enrolls with the shared worker token; all other
routes require the worker's own credential. API keys are refused."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from tunesmith_schema import (
    Claim,
    ClaimRequest,
    ErrorCode,
    FileObject,
    FileReading,
    ReadingClaim,
    ReadingEnd,
    ReadingLease,
    ReadingResult,
    ReportReply,
    StoredFile,
    WorkerEnrollment,
    WorkerHello,
    WorkerWelcome,
)
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.storage import BLOB_GRACE, hash_of
from tunesmith_server.services import blobs, workers
from tunesmith_server.services.catalogue import adapters
from tunesmith_server.services.data import files  # fmt: skip
from tunesmith_server.services.leasing import (
    claims,
    file_readings,
    leases,
    resume_points,
    worker_access,
)
from tunesmith_server.services.leasing.received import ReceivedReport
from tunesmith_server.services.results import faults

from .blobs import store as store_blob
from .bounds import FenceQuery, FileNamePath, IdPath, RangeHeader, WorkerPath
from .deps import (
    EnrollRoute,
    ReaderDep,
    SessionDep,
    State,
    StateDep,
    WorkerDep,
    WorkerRoute,
    bulk,
)
from .files import send_blob

log = logging.getLogger(__name__)
router = APIRouter(tags=["internal"], include_in_schema=False, route_class=WorkerRoute)
enrollment = APIRouter(tags=["internal"], include_in_schema=False, route_class=EnrollRoute)

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@enrollment.post("/workers/enroll")
def enroll(session: SessionDep, body: WorkerEnrollment) -> dict[str, bool]:
    worker_access.enroll(session, body)
    return {"enrolled": True}


@router.post("/workers/hello")
def hello(session: SessionDep, worker: WorkerDep, body: WorkerHello) -> WorkerWelcome:
    worker_access.check_self(worker, body.worker_id, body.queue)
    return workers.hello(session, body)


@router.delete("/workers/{worker_id}")
def goodbye(session: SessionDep, worker: WorkerDep, worker_id: WorkerPath) -> dict[str, bool]:
    worker_access.check_self(worker, worker_id)
    workers.goodbye(session, worker_id)
    return {"deleted": True}


@router.post("/jobs/claim", response_model=None)
def claim(
    state: StateDep, session: SessionDep, worker: WorkerDep, body: ClaimRequest
) -> Claim | Response:
    """Lease the first job in queue order that the worker can run; return 204 if there is none."""
    worker_access.check_self(worker, body.worker_id, "train")
    return claims.claim(session, state.settings, body.worker_id) or Response(status_code=204)


@router.post("/jobs/{job_id}/report")
def report(state: StateDep, worker: WorkerDep, job_id: IdPath, body: ReceivedReport) -> ReportReply:
    """Renew the lease, store the events and answer with a command. If the database or the storage
    fails, only renew the lease and answer with the command; the worker sends the events again. If
    the outcome in a final report cannot be stored, answer with the error; the worker then repeats
    the report."""

    worker_access.check_self(worker, body.worker_id)

    def store(report: ReceivedReport) -> ReportReply:
        with state.database.write.begin() as session:
            worker_access.check_reporter(session, worker, job_id)
            return leases.report(session, state.settings, state.wake_ups, job_id, report)

    try:
        return store(state.file_checks.check(body))
    except Exception as error:
        if not faults.is_outage(error):
            raise
        log.warning("events of %s not stored: %s", job_id, error)
        bare = body.model_copy(update={"events": [], "run_report": None, "outcome": None})
        if body.outcome is None:
            return store(bare)
        with contextlib.suppress(Exception):  # the first error is returned to the worker
            store(bare)
        raise


@router.put("/jobs/{job_id}/blobs/{sha256}")
async def put_blob(
    state: StateDep,
    request: Request,
    worker: WorkerDep,
    job_id: IdPath,
    sha256: Sha256,
    fence: FenceQuery,
) -> StoredFile:
    """Store one file of a checkpoint or adapter, if `fence` is the job's current fencing token."""

    def check() -> None:
        with state.database.read() as session:
            worker_access.held_job(session, worker, job_id, fence)

    await run_in(Plane.WORKERS, check)
    with tempfile.TemporaryFile() as spool:
        async for piece in request.stream():
            await run_in_threadpool(spool.write, piece)
        actual, size = await run_in_threadpool(hash_of, spool)
        if actual != sha256:
            raise BadRequest(
                ErrorCode.UPLOAD_MISMATCH, f"the body's sha256 is {actual}, not {sha256}",
                hint="the transfer was damaged: send the file again",
            )  # fmt: skip
        await run_in_threadpool(store_blob, state, spool, sha256, size)
        await run_in_threadpool(_mark_stored, state, sha256, size)
    return StoredFile(name="blob", bytes=size, sha256=sha256)


def _mark_stored(state: State, sha256: str, size: int) -> None:
    with state.database.write.begin() as session:
        blobs.use(session, {sha256: size})


@router.get("/jobs/{job_id}/blobs/{sha256}")
@bulk
def is_stored(
    state: StateDep,
    session: ReaderDep,
    worker: WorkerDep,
    job_id: IdPath,
    sha256: Sha256,
    fence: FenceQuery,
) -> dict[str, bool]:
    """Return true if the content is already stored and will not be deleted soon. If the answer is
    true, the worker need not send the content."""
    worker_access.held_job(session, worker, job_id, fence)
    size = blobs.is_kept(session, sha256, BLOB_GRACE / 2)
    return {"stored": size is not None and state.storage.size(sha256) == size}


@router.get("/jobs/{job_id}/resume/{sha256}")
@bulk
def resume_file(
    state: StateDep,
    session: ReaderDep,
    worker: WorkerDep,
    job_id: IdPath,
    sha256: Sha256,
    fence: FenceQuery,
) -> Response:
    """Return one file of a resume point. The claim lists the files of each resume point."""
    job = worker_access.held_job(session, worker, job_id, fence)
    file = resume_points.find_file(session, job, sha256)
    return send_blob(state.storage, file.sha256, file.bytes, file.name, None)


@router.get("/jobs/{job_id}/base/{name}")
@bulk
def base_file(
    state: StateDep,
    session: ReaderDep,
    worker: WorkerDep,
    job_id: IdPath,
    name: FileNamePath,
    fence: FenceQuery,
) -> Response:
    """Return one file of the tuned model that the job starts from."""
    job = worker_access.held_job(session, worker, job_id, fence)
    file = adapters.find_file(adapters.retrieve(session, job.base_adapter_id or ""), name)
    return send_blob(state.storage, file.sha256, file.bytes, file.name, None)


@router.get("/files/{file_id}/content")
@bulk
def file_content(
    state: StateDep,
    session: ReaderDep,
    worker: WorkerDep,
    file_id: IdPath,
    range: RangeHeader = None,
) -> Response:
    row = files.retrieve(session, file_id)
    worker_access.check_file(session, worker, row)
    return send_blob(state.storage, row.sha256, row.bytes, row.filename, range)


@router.post("/files/{file_id}/reading/claim")
def claim_reading(
    state: StateDep, session: SessionDep, worker: WorkerDep, file_id: IdPath, body: ReadingClaim
) -> FileReading:
    """Lease an uploaded file to a worker, which reads and validates the file.

    If `reading` is 0 in the response, the worker skips the file.
    """
    worker_access.check_self(worker, body.worker_id, "light")
    return file_readings.claim(session, state.settings, file_id, body)


@router.post("/files/{file_id}/reading/renew")
def renew_reading(
    state: StateDep, session: SessionDep, worker: WorkerDep, file_id: IdPath, body: ReadingLease
) -> FileReading:
    """Extend a worker's lease of an uploaded file."""
    worker_access.check_self(worker, body.worker_id, "light")
    return file_readings.renew(session, state.settings, file_id, body)


@router.post("/files/{file_id}/reading/give-back")
def give_back_reading(
    state: StateDep, session: SessionDep, worker: WorkerDep, file_id: IdPath, body: ReadingEnd
) -> dict[str, bool]:
    """End a worker's lease of an uploaded file without a validation result."""
    worker_access.check_self(worker, body.worker_id, "light")
    wake_ups = state.wake_ups
    file_readings.give_back(session, wake_ups, file_id, body, crashed=body.crashed)
    return {"given_back": True}


@router.post("/files/{file_id}/reading/result")
def reading_result(
    state: StateDep, session: SessionDep, worker: WorkerDep, file_id: IdPath, body: ReadingResult
) -> FileObject:
    """Store a file's validation result; queue or fail the jobs that waited for it."""
    worker_access.check_self(worker, body.worker_id, "light")
    row = file_readings.store_result(session, state.wake_ups, file_id, body, body)
    return files.to_wire(row)
