"""Routes under /v1/adapters: trained weights, as single files or as one tar."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from tunesmith_schema import Adapter, Page
from tunesmith_schema.verification import Verification
from tunesmith_server.services.catalogue import adapters, verifications

from .bounds import FileNamePath, IdPath, RangeHeader
from .deps import CallerDep, CursorDep, KeyRoute, ReaderDep, StateDep, bulk, send_page
from .files import BINARY, send_or_redirect

router = APIRouter(prefix="/adapters", tags=["adapters"], route_class=KeyRoute)


@router.get("", response_model=None, responses={200: {"model": Page[Adapter]}})
def list_adapters(caller: CallerDep, session: ReaderDep, cursor: CursorDep) -> Response:
    """List the trained weights of all jobs (results and checkpoints) with their files, newest
    first."""
    return send_page(
        adapters.list_adapters(session, after=cursor.after, limit=cursor.limit, order=cursor.order)
    )


@router.get("/{adapter_id}")
def retrieve(caller: CallerDep, session: ReaderDep, adapter_id: IdPath) -> Adapter:
    return adapters.to_wire(adapters.retrieve(session, adapter_id))


@router.get("/{adapter_id}/verification")
@bulk
def verification(
    caller: CallerDep, state: StateDep, session: ReaderDep, adapter_id: IdPath
) -> Verification:
    """Return the result of checking the stored files. The check loaded the files and compared the
    logits with those of the trained model. The result has the largest difference, the tolerance,
    and the versions of the libraries. Checkpoints are not checked and have no result."""
    return verifications.retrieve(state.storage, adapters.retrieve(session, adapter_id))


@router.get(
    "/{adapter_id}/content",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-tar": {}}}},
)
def content(caller: CallerDep, state: StateDep, session: ReaderDep, adapter_id: IdPath) -> Response:
    """Return all files as an uncompressed tar; `curl ... | tar x` unpacks it into a PEFT folder."""
    row = adapters.retrieve(session, adapter_id)
    return StreamingResponse(
        adapters.tar_stream(row, state.storage),
        media_type="application/x-tar",
        headers={
            "content-length": str(adapters.tar_bytes(row)),
            "content-disposition": f'attachment; filename="{row.id}.tar"',
        },
    )


@router.get("/{adapter_id}/content/{name}", response_class=StreamingResponse, responses=BINARY)
def one_file(
    caller: CallerDep,
    state: StateDep,
    session: ReaderDep,
    adapter_id: IdPath,
    name: FileNamePath,
    range: RangeHeader = None,
) -> Response:
    file = adapters.find_file(adapters.retrieve(session, adapter_id), name)
    return send_or_redirect(state, file.sha256, file.bytes, file.name, range)
