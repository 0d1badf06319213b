"""Routes under /v1/uploads: OpenAI's Uploads API, plus a GET route that lists received parts."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, File, UploadFile

from tunesmith_schema import Upload, UploadComplete, UploadCreate, UploadPart
from tunesmith_server.core.database import new_id
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.storage import hash_of
from tunesmith_server.services import keys
from tunesmith_server.services.data import upload_completion, uploads

from .blobs import announce
from .bounds import IdPath
from .deps import (
    CallerDep,
    KeyRoute,
    PrincipalDep,
    ReaderDep,
    SessionDep,
    StateDep,
    bulk,
    project_reader,
    project_writer,
)

router = APIRouter(prefix="/uploads", tags=["uploads"], route_class=KeyRoute)


@router.post("")
def create(caller: CallerDep, session: SessionDep, body: UploadCreate) -> Upload:
    return uploads.create(session, body)


@router.get("/{upload_id}")
def retrieve(caller: CallerDep, session: ReaderDep, upload_id: IdPath) -> Upload:
    return uploads.show(session, upload_id)


@router.post("/{upload_id}/parts")
@bulk
def create_part(
    principal: PrincipalDep,
    state: StateDep,
    session: SessionDep,
    upload_id: IdPath,
    data: Annotated[UploadFile, File()],
) -> UploadPart:
    """Add a part. The write transaction starts after the part is stored, so that other writers need
    not wait for the store."""
    sha256, size = hash_of(data.file)
    with project_reader(state, principal) as reader:
        known = uploads.find_part(reader, upload_id, sha256, size)
    if known:
        return uploads.part_to_wire(known)
    part_id = new_id("part")
    announce(state, part_id, size)
    return uploads.add_part(
        session, state.storage, upload_id, data.file, part_id=part_id, sha256=sha256, size=size
    )


@router.post("/{upload_id}/complete")
async def complete(
    principal: PrincipalDep, state: StateDep, upload_id: IdPath, body: UploadComplete
) -> Upload:
    """Assemble the parts into a file, which takes seconds per GB. If several requests complete the
    same upload, the parts are assembled only once. The write transaction starts after the content
    is stored."""

    def plan() -> upload_completion.Assembly | Upload:
        with project_reader(state, principal) as reader:
            return upload_completion.plan(reader, upload_id, body)

    def finish(content: upload_completion.Assembled) -> Upload:
        with project_writer(state, principal) as session, session.begin():
            keys.check_open(session, principal.use)  # the assembly may have taken long
            return upload_completion.finish(session, state.wake_ups, upload_id, body, content)

    async def assemble() -> Upload:
        work = await run_in(Plane.USERS, plan)
        if isinstance(work, Upload):
            return work
        join = partial(upload_completion.assemble, state.storage, work, partial(announce, state))
        content = await run_in(Plane.ASSEMBLY, join)
        return await run_in(Plane.USERS, partial(finish, content))

    subject = f"{principal.project_id} {upload_id}"  # another project gets 404, not this result
    return await state.completions.run(subject, body.model_dump_json(), assemble)


@router.post("/{upload_id}/cancel")
def cancel(caller: CallerDep, session: SessionDep, upload_id: IdPath) -> Upload:
    return uploads.cancel(session, upload_id)
