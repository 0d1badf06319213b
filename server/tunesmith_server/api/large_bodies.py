"""Limits on large JSON bodies: only a few bodies are in memory at a time, and only one body is
parsed at a time.

Parsing blocks the event loop for up to 0.1 s and can need 20 times the body's size. Forms of any
size are written into files piece by piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio.lowlevel import RunVar
from fastapi import Request

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import BadRequest, Unavailable

LARGE_BYTES = 64 * 1024
"""Size in bytes above which a body is large. Any number of smaller bodies may be in memory, because
the HTTP server buffers up to this many bytes of each body anyway."""
AT_ONCE = 4
SECONDS = 30.0
"""Maximum seconds until a large body has arrived, so that slow clients do not delay others."""

_gates: RunVar[tuple[asyncio.Semaphore, asyncio.Lock]] = RunVar("tunesmith_large_bodies")


@asynccontextmanager
async def admitted(request: Request, *, is_form: bool) -> AsyncIterator[None]:
    """Wait until the request's body may be read and processed. `is_form`: True if the route reads a
    form. A route that reads a form refuses any other body, because the server would read the other
    body into memory."""
    if is_form:
        _check_form(request)
    if is_form or not _is_large(request):
        yield
        return
    try:
        reading, processing = _gates.get()
    except LookupError:
        reading, processing = asyncio.Semaphore(AT_ONCE), asyncio.Lock()
        _gates.set((reading, processing))
    async with reading:
        try:
            async with asyncio.timeout(SECONDS):
                await request.body()  # the route reads the body again, from memory
        except TimeoutError:
            raise Unavailable(
                ErrorCode.UNAVAILABLE, f"the body did not arrive within {SECONDS:.0f} s",
                hint="repeat the request over a faster connection, or send a smaller body",
            ) from None  # fmt: skip
        async with processing:
            yield


def _check_form(request: Request) -> None:
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            "the body must be a form with 'Content-Type: multipart/form-data', got "
            + (repr(kind[:80]) if kind else "no content type"),
            hint="`curl -F file=@rows.jsonl` and the SDK send a form",
        )


def _is_large(request: Request) -> bool:
    if request.method == "GET":
        return False
    length = request.headers.get("content-length", "")
    if length.isdecimal():
        return int(length) > LARGE_BYTES
    return "transfer-encoding" in request.headers
