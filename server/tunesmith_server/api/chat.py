"""Routes /v1/chat/completions and /v1/completions: answers of the inference server, passed through
as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from tunesmith_schema import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    ErrorBody,
    ErrorCode,
    ErrorEnvelope,
    Sampling,
)
from tunesmith_server.core.errors import Unavailable
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.inference.protocol import ServedModel
from tunesmith_server.services import served_models

from .deps import CallerDep, ChatRoute, State, StateDep

if TYPE_CHECKING:  # importing httpx takes 0.2 s, and many servers never chat
    import httpx

router = APIRouter(tags=["chat"], route_class=ChatRoute)

_ENGINE = "x-tunesmith-engine"
"""Header that names the engine: `native` or `transformers`."""
_EVENTS = re.compile(rb".*(?:\n\n|\r\n\r\n)", re.DOTALL)
"""All complete server-sent events."""
_INTERRUPTED = "the inference server ended before the answer was complete"
_AGAIN = "send the request again"


@router.post("/chat/completions", response_model=None, responses={200: {"model": ChatCompletion}})
async def create_chat_completion(caller: CallerDep, state: StateDep, body: ChatRequest) -> Response:
    """Answer a conversation; with `stream`, send `ChatChunk` objects as server-sent events."""
    return _EngineResponse(state, "/chat/completions", body)


@router.post("/completions", response_model=None, responses={200: {"model": Completion}})
async def create_completion(
    caller: CallerDep, state: StateDep, body: CompletionRequest
) -> Response:
    """Continue one or more texts; with `stream`, send the parts as server-sent events."""
    return _EngineResponse(state, "/completions", body)


class _EngineResponse(Response):
    """Response of the inference server. The request to it is sent when the route has ended, so that
    a slow answer keeps no limit on large bodies occupied."""

    def __init__(self, state: State, path: str, body: Sampling) -> None:
        super().__init__()
        self._state, self._path, self._request = state, path, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer until the client disconnects, which cancels the request to the inference
        server."""
        answer = asyncio.ensure_future(self._answer(scope, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not answer.done():
                answer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answer

    async def _answer(self, scope: Scope, send: Send) -> None:
        state, inference = self._state, self._state.inference
        with inference.admitted():
            resolve = partial(_resolve, state, self._request.model)
            model = await run_in(Plane.CHAT, resolve)
            body = json.dumps(self._request.for_engine()).encode()
            response = await inference.answer(model, self._path, body)
            try:
                if self._request.stream:
                    await _stream(response, Request(scope), send)
                else:
                    await _send_whole(response, scope, send)
            finally:
                await response.aclose()


def _resolve(state: State, name: str) -> ServedModel:
    with state.database.read() as session:
        return served_models.resolve(session, state.settings, name)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(response: httpx.Response, scope: Scope, send: Send) -> None:
    from httpx import HTTPError

    try:
        content = await response.aread()
    except HTTPError:
        raise Unavailable(ErrorCode.UNAVAILABLE, _INTERRUPTED, hint=_AGAIN) from None
    whole = Response(content, media_type="application/json", headers=_engine_of(response))

    async def nothing() -> dict[str, str]:
        return {"type": "http.disconnect"}

    await whole(scope, nothing, send)


async def _stream(response: httpx.Response, request: Request, send: Send) -> None:
    """Send the events of `response` as they arrive. If the connection breaks, the last event has
    the error."""
    from httpx import HTTPError

    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",  # proxies must not collect events
        **_engine_of(response),
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    try:
        async for events in _whole_events(response):
            await send({"type": "http.response.body", "body": events, "more_body": True})
    except HTTPError:
        event = _error_event(request)
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _whole_events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield complete events; the rest of a broken stream is dropped.

    Some servers end lines with CR and LF."""
    rest = b""
    async for piece in response.aiter_bytes():
        rest += piece
        if events := _EVENTS.match(rest):
            yield events[0]
            rest = rest[events.end() :]
    if rest.strip():
        yield rest + b"\n\n"


def _error_event(request: Request) -> bytes:
    error = ErrorBody(
        message=_INTERRUPTED,
        type="server_error",
        code=ErrorCode.UNAVAILABLE,
        hint=_AGAIN,
        retryable=True,
        request_id=getattr(request.state, "request_id", None),
    )
    return f"data: {ErrorEnvelope(error=error).model_dump_json()}\n\n".encode()


def _engine_of(response: httpx.Response) -> dict[str, str]:
    engine = response.headers.get(_ENGINE, "")
    return {_ENGINE: engine} if engine.isalnum() and len(engine) < 40 else {}
