"""Routes under /internal, for workers. These routes require the worker token and refuse API
keys."""

from __future__ import annotations

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
    FileValidation,
    ReportReply,
    StoredFile,
    WorkerHello,
    WorkerWelcome,
)
from tunesmith_schema.bounds import JsonBound
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.storage import BLOB_GRACE, hash_of
from tunesmith_server.services import (
    adapters,
    blobs,
    files,
    jobs,
    leases,
    received,
    resume_points,
    workers,
)  # fmt: skip
from tunesmith_server.services.received import ReceivedReport

from .blobs import store as store_blob
from .bounds import FenceQuery, FileNamePath, IdPath, RangeHeader, WorkerPath
from .deps import ReaderDep, SessionDep, State, StateDep, WorkerRoute
from .files import send_blob

log = logging.getLogger(__name__)
router = APIRouter(tags=["internal"], include_in_schema=False, route_class=WorkerRoute)

BoundedValidation = Annotated[FileValidation, JsonBound(512 * 1024)]
Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@router.post("/workers/hello")
def hello(session: SessionDep, body: WorkerHello) -> WorkerWelcome:
    return workers.hello(session, body)


@router.delete("/workers/{worker_id}")
def goodbye(session: SessionDep, worker_id: WorkerPath) -> dict[str, bool]:
    workers.goodbye(session, worker_id)
    return {"deleted": True}


@router.post("/jobs/claim", response_model=None)
def claim(state: StateDep, session: SessionDep, body: ClaimRequest) -> Claim | Response:
    """Lease the oldest job that the worker can serve; return 204 if there is none."""
    return leases.claim(session, state.settings, body.worker_id) or Response(status_code=204)


@router.post("/jobs/{job_id}/report")
def report(state: StateDep, job_id: IdPath, body: ReceivedReport) -> ReportReply:
    """Renew the lease, store the events and answer with a command. If the database or the storage
    fails, answer with the command alone; the worker repeats the events."""

    def store(report: ReceivedReport) -> ReportReply:
        with state.database.write.begin() as session:
            return leases.report(session, state.settings, state.wake_ups, job_id, report)

    try:
        return store(received.check_files(state.storage, body))
    except Exception as error:
        if body.outcome is not None or not received.is_outage(error):
            raise
        log.warning("events of %s not stored: %s", job_id, error)
        return store(body.model_copy(update={"events": [], "run_report": None}))


@router.put("/jobs/{job_id}/blobs/{sha256}")
async def put_blob(
    state: StateDep,
    request: Request,
    job_id: IdPath,
    sha256: Sha256,
    fence: FenceQuery,
) -> StoredFile:
    """Store one file of a checkpoint or adapter, if `fence` is the job's current fence."""

    def check() -> None:
        with state.database.read() as session:
            leases.check_fence(session, job_id, fence)

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
def is_stored(
    state: StateDep,
    session: ReaderDep,
    job_id: IdPath,
    sha256: Sha256,
    fence: FenceQuery,
) -> dict[str, bool]:
    """Return true if the worker need not send the content: it is stored and will not be deleted
    soon."""
    leases.check_fence(session, job_id, fence)
    size = blobs.is_kept(session, sha256, BLOB_GRACE / 2)
    return {"stored": size is not None and state.storage.size(sha256) == size}


@router.get("/jobs/{job_id}/resume/{sha256}")
def resume_file(
    state: StateDep,
    session: ReaderDep,
    job_id: IdPath,
    sha256: Sha256,
    fence: FenceQuery,
) -> Response:
    """Return one file of a resume point that the claim listed."""
    job = leases.check_fence(session, job_id, fence)
    file = resume_points.find_file(session, job, sha256)
    return send_blob(state.storage, file.sha256, file.bytes, file.name, None)


@router.get("/jobs/{job_id}/base/{name}")
def base_file(
    state: StateDep,
    session: ReaderDep,
    job_id: IdPath,
    name: FileNamePath,
    fence: FenceQuery,
) -> Response:
    """Return one file of the tuned model that the job starts from."""
    job = leases.check_fence(session, job_id, fence)
    file = adapters.find_file(adapters.retrieve(session, job.base_adapter_id or ""), name)
    return send_blob(state.storage, file.sha256, file.bytes, file.name, None)


@router.get("/files/{file_id}")
def retrieve_file(session: ReaderDep, file_id: IdPath) -> FileObject:
    return files.to_wire(files.retrieve(session, file_id))


@router.get("/files/{file_id}/content")
def file_content(
    state: StateDep,
    session: ReaderDep,
    file_id: IdPath,
    range: RangeHeader = None,
) -> Response:
    row = files.retrieve(session, file_id)
    return send_blob(state.storage, row.sha256, row.bytes, row.filename, range)


@router.post("/files/{file_id}/validation/begin")
def start_reading(state: StateDep, session: SessionDep, file_id: IdPath) -> FileObject:
    """Record that a light worker starts to read the file. The worker skips the file unless
    `status` is `uploaded`."""
    row = files.start_reading(session, file_id)
    session.flush()
    jobs.file_validated(session, state.wake_ups, row)
    return files.to_wire(row)


@router.post("/files/{file_id}/validation")
def validation(
    state: StateDep,
    session: SessionDep,
    file_id: IdPath,
    body: BoundedValidation,
) -> FileObject:
    """Store a light worker's validation result; queue or fail the jobs that waited for it."""
    row = files.record_validation(session, file_id, body)
    session.flush()
    jobs.file_validated(session, state.wake_ups, row)
    return files.to_wire(row)
