"""Routes under /v1/adapters: trained weights, as single files or as one tar."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from tunesmith_schema import Adapter
from tunesmith_server.services import adapters

from .bounds import FileNamePath, IdPath, RangeHeader
from .deps import CallerDep, KeyRoute, ReaderDep, StateDep
from .files import BINARY, send_or_redirect

router = APIRouter(prefix="/adapters/{adapter_id}", tags=["adapters"], route_class=KeyRoute)


@router.get("")
def retrieve(caller: CallerDep, session: ReaderDep, adapter_id: IdPath) -> Adapter:
    return adapters.to_wire(adapters.retrieve(session, adapter_id))


@router.get(
    "/content",
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


@router.get("/content/{name}", response_class=StreamingResponse, responses=BINARY)
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
