"""Routes under /v1/files: OpenAI's file resource."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, File, Form, Header, Query, UploadFile
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from sqlalchemy.orm import Session
from starlette.types import Receive, Scope, Send

from tunesmith_schema import (
    MAX_ROWS_PAGE,
    DataRow,
    ErrorCode,
    FileDeleted,
    FileObject,
    FileOverlap,
    FilePurpose,
    FileStats,
    FileUse,
    Page,
)
from tunesmith_schema.bounds import MAX_COUNT
from tunesmith_server.core.errors import BadRequest, NotFound, RangeNotSatisfiable
from tunesmith_server.core.principal import Principal
from tunesmith_server.core.security import key_hash
from tunesmith_server.core.storage import Storage, hash_of
from tunesmith_server.services import quotas
from tunesmith_server.services.data import file_reuse, file_rows, file_stats, file_uses, files
from tunesmith_server.services.paging import Order
from tunesmith_server.services.results import result_files

from .blobs import store
from .bounds import AfterQuery, IdPath, RangeHeader
from .deps import (
    CallerDep,
    CursorDep,
    KeyRoute,
    PrincipalDep,
    ReaderDep,
    SessionDep,
    State,
    StateDep,
    bulk,
    project_reader,
    send_page,
)

router = APIRouter(prefix="/files", tags=["files"], route_class=KeyRoute)

BINARY: dict[int | str, dict[str, Any]] = {  # Any: FastAPI's own
    200: {"content": {"application/octet-stream": {}}},
    206: {"content": {"application/octet-stream": {}}, "description": "The requested byte range."},
}
"""OpenAPI responses of a route that answers with `send_blob`."""

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.IGNORECASE)


@router.post("")
@bulk
def create(
    principal: PrincipalDep,
    state: StateDep,
    session: SessionDep,
    response: Response,
    file: Annotated[UploadFile, File()],
    purpose: Annotated[FilePurpose, Form()],
    expires_in: Annotated[
        int | None, Form(alias="expires_after[seconds]", ge=3600, le=2_592_000)
    ] = None,
    expires_from: Annotated[
        Literal["created_at"] | None, Form(alias="expires_after[anchor]")
    ] = None,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> FileObject:
    """Upload a file. The server spools the body to disk. A second request with the same
    `Idempotency-Key` returns the same file."""
    if expires_from and not expires_in:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST, "expires_after[anchor] requires expires_after[seconds]",
            param="expires_after[seconds]", hint="send 3600 to 2592000 seconds",
        )  # fmt: skip
    created, replayed = store_upload(
        state,
        session,
        principal,
        content=file.file,
        filename=file.filename or "file",
        purpose=purpose,
        expires_in=expires_in,
        request_key=idempotency_key
        and key_hash(f"{principal.key_id}\n{principal.project_id}\n{idempotency_key}"),
    )
    if replayed:
        response.headers["idempotent-replayed"] = "true"
    return created


def store_upload(
    state: State,
    session: Session,
    principal: Principal,
    *,
    content: BinaryIO,
    filename: str,
    purpose: FilePurpose,
    expires_in: int | None = None,
    request_key: str | None = None,
    reuses: bool = False,
) -> tuple[FileObject, bool]:
    """Store an uploaded file; return it, and True if it existed already. With `reuses`, return an
    existing file with the same content and format instead of a new file, if there is one."""
    sha256, size = hash_of(content)
    files.check_size(filename, size)
    if reuses:
        with project_reader(state, principal) as reader:
            known = file_reuse.find(reader, filename=filename, purpose=purpose, sha256=sha256)
        if known:
            return known, True
    if principal.project.max_bytes is not None:  # checked before the bytes are stored
        with project_reader(state, principal) as reader:
            quotas.check(reader, size, lock=False)
    store(state, content, sha256, size)
    return files.create(
        session,
        state.wake_ups,
        filename=filename,
        purpose=purpose,
        sha256=sha256,
        size=size,
        expires_in=expires_in,
        request_key=request_key,
    )


@router.get("", response_model=None, responses={200: {"model": Page[FileObject]}})
def list_files(
    caller: CallerDep,
    session: ReaderDep,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Order = "desc",
    purpose: Annotated[str | None, Query(max_length=32)] = None,
    sha256: Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")] = None,
    q: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    include: Literal["num_uses"] | None = None,
) -> Response:
    """List files, newest first, optionally filtered by `purpose`, by the content's `sha256`, and by
    a part of the name or the id (`q`). `include=num_uses` counts the jobs and evaluations that use
    each file."""
    return send_page(
        files.list_files(
            session,
            after=after,
            limit=limit,
            order=order,
            purpose=purpose,
            sha256=sha256,
            text=q,
            with_uses=include == "num_uses",
        )
    )


@router.get("/{file_id}")
def retrieve(caller: CallerDep, session: ReaderDep, file_id: IdPath) -> FileObject:
    if job := result_files.job_of(session, file_id):
        return result_files.to_wire(session, job)
    return files.to_wire(files.retrieve(session, file_id))


@router.get("/{file_id}/content", response_class=StreamingResponse, responses=BINARY)
def content(
    caller: CallerDep,
    state: StateDep,
    session: ReaderDep,
    file_id: IdPath,
    range: RangeHeader = None,
) -> Response:
    if job := result_files.job_of(session, file_id):
        made = result_files.content(session, job)
        return Response(
            made,
            media_type="application/octet-stream",
            headers={"content-disposition": f'attachment; filename="{job.id}-metrics.csv"'},
        )
    row = files.retrieve(session, file_id)
    return send_or_redirect(state, row.sha256, row.bytes, row.filename, range)


@router.get("/{file_id}/rows", response_model=None, responses={200: {"model": Page[DataRow]}})
@bulk
def list_rows(
    principal: PrincipalDep,
    state: StateDep,
    file_id: IdPath,
    offset: Annotated[int, Query(ge=0, le=MAX_COUNT)] = 0,
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS_PAGE)] = 20,
    q: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
) -> Response:
    """List the rows of a JSONL file with their line numbers. `offset` skips lines; `q` selects rows
    that contain a text. A request searches a bounded number of bytes, so a page can be empty
    although more rows follow. While `has_more` is true, request the next page with
    `after=<last_id>`."""
    with project_reader(state, principal) as session:  # storage may be slow
        row = files.retrieve(session, file_id)
    try:
        page = file_rows.read_page(
            state.storage, row, after=after, offset=offset, limit=limit, text=q
        )
    except FileNotFoundError:
        raise content_missing(row.filename) from None
    return send_page(page)


@router.get("/{file_id}/uses", response_model=None, responses={200: {"model": Page[FileUse]}})
def list_uses(
    caller: CallerDep, session: ReaderDep, file_id: IdPath, cursor: CursorDep
) -> Response:
    """List the jobs and evaluations that use a file, newest first."""
    files.retrieve(session, file_id)
    return send_page(
        file_uses.list_uses(
            session, file_id, after=cursor.after, limit=cursor.limit, order=cursor.order
        )
    )


@router.get("/{file_id}/stats")
def stats(caller: CallerDep, session: ReaderDep, file_id: IdPath) -> FileStats:
    """Return lengths and duplicates of the rows of a data set."""
    return file_stats.retrieve(session, file_id)


@router.get("/{file_id}/overlap")
@bulk
def overlap(
    caller: CallerDep,
    session: ReaderDep,
    file_id: IdPath,
    other: Annotated[str, Query(alias="with", max_length=64)],
) -> FileOverlap:
    """Return the rows of a data set that are also in the data set `with`."""
    return file_stats.overlap(session, file_id, other)


@router.delete("/{file_id}")
def delete(caller: CallerDep, session: SessionDep, file_id: IdPath) -> FileDeleted:
    if job := result_files.job_of(session, file_id):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST, f"file {file_id!r} has the metrics of job {job.id}",
            hint=f"DELETE /v1/fine_tuning/jobs/{job.id} deletes the job with its metrics",
        )  # fmt: skip
    files.delete(session, file_id)
    return FileDeleted(id=file_id)


def send_or_redirect(
    state: State, sha256: str, size: int, filename: str, range_header: str | None
) -> Response:
    """Return a redirect to the store if presigned URLs are enabled and the store supports them. If
    there is no redirect, return the content itself. After a redirect to another host, clients
    repeat the header Range but do not send the API key."""
    seconds = state.settings.presigned_seconds
    link = state.storage.link(sha256, seconds) if seconds else None
    if link is None:
        try:
            return send_blob(state.storage, sha256, size, filename, range_header)
        except FileNotFoundError:
            raise content_missing(filename) from None
    return RedirectResponse(link, status_code=307, headers={"cache-control": "no-store"})


def content_missing(filename: str) -> NotFound:
    return NotFound(
        ErrorCode.CONTENT_MISSING,
        f"the server's storage has lost the content of {filename!r}",
        hint="restore the storage from a backup, or upload the file or train the model again",
    )


class Download(StreamingResponse):
    """Response that closes the stored object when the client disconnects."""

    def __init__(self, pieces: Iterator[bytes], **options: Any) -> None:  # Any: Starlette's own
        super().__init__(pieces, **options)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if isinstance(self._pieces, Generator):
                self._pieces.close()


def send_blob(
    storage: Storage, sha256: str, size: int, filename: str, range_header: str | None
) -> Response:
    """Return a blob, or one byte range of it (RFC 9110, section 14)."""
    if range_header and not range_header.lower().startswith("bytes="):
        range_header = None  # unknown units are ignored
    start, end = _parse_range(range_header, size)
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", filename)
    headers = {
        "accept-ranges": "bytes",
        "content-length": str(end - start),
        "content-disposition": f'attachment; filename="{plain}"',
        "x-content-type-options": "nosniff",
        "etag": f'"{sha256}"',
    }
    if range_header:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    return Download(
        storage.stream(sha256, start, end),
        status_code=206 if range_header else 200,
        media_type="application/octet-stream",
        headers=headers,
    )


def _parse_range(range_header: str | None, size: int) -> tuple[int, int]:
    if not range_header:
        return 0, size
    match = _RANGE.fullmatch(range_header)
    if match is None or match.groups() == ("", ""):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST, f"Range {range_header!r} is not a single byte range",
            hint="send one range, for example: Range: bytes=0-1023",
        )  # fmt: skip
    first, last = match.groups()
    if first:
        start, end = int(first), min(int(last) + 1, size) if last else size
    else:
        start, end = max(0, size - int(last)), size
    if start >= end:
        raise RangeNotSatisfiable(
            ErrorCode.RANGE_NOT_SATISFIABLE, f"Range {range_header!r} is outside the {size} bytes",
            hint=f"request bytes below {size}, or send no Range header for all bytes",
            headers={"content-range": f"bytes */{size}"},
        )  # fmt: skip
    return start, end
