"""Routes /v1/chat/completions and /v1/completions, which forward the answers of the inference
server as they arrive. The portal's playground also calls `answering`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

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
from tunesmith_server.core.errors import ServiceError, Unavailable
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.principal import Principal
from tunesmith_server.inference.protocol import ServedModel
from tunesmith_server.services import keys
from tunesmith_server.services.catalogue import served_models

from .deps import ChatRoute, PrincipalDep, State, StateDep, project_reader

if TYPE_CHECKING:  # importing httpx takes 0.2 s, and many servers never chat
    import httpx

router = APIRouter(tags=["chat"], route_class=ChatRoute)

_ENGINE = "x-tunesmith-engine"
"""Header that names the engine: `native` or `transformers`."""
_ENDS = (b"\n\n", b"\r\n\r\n")
"""Byte sequences that end a server-sent event; some servers end lines with CR and LF."""


@router.post("/chat/completions", response_model=None, responses={200: {"model": ChatCompletion}})
async def create_chat_completion(
    principal: PrincipalDep, state: StateDep, body: ChatRequest
) -> Response:
    """Answer a conversation; with `stream`, send `ChatChunk` objects as server-sent events."""
    return _EngineResponse(state, principal, "/chat/completions", body, body.n or 1)


@router.post("/completions", response_model=None, responses={200: {"model": Completion}})
async def create_completion(
    principal: PrincipalDep, state: StateDep, body: CompletionRequest
) -> Response:
    """Continue one or more texts; with `stream`, send the parts as server-sent events."""
    several = isinstance(body.prompt, list) and not isinstance(body.prompt[0], int)
    completions = (len(body.prompt) if several else 1) * (body.n or 1)
    return _EngineResponse(state, principal, "/completions", body, completions)


class _EngineResponse(Response):
    """Response of the inference server.

    The API sends the request to the inference server after the route function has returned. The
    limit on large bodies counts only requests whose route function is running, so a slow answer
    does not block other large requests. Until the answer is complete, the API keeps only the
    request's body in memory.
    """

    def __init__(
        self, state: State, principal: Principal, path: str, request: Sampling, completions: int
    ) -> None:
        """`completions`: number of answers that the request asks for."""
        super().__init__()
        self._state, self._principal = state, principal
        self._question = Question.of(request, principal, path, completions)
        self._is_stream = bool(request.stream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the client. If the client disconnects or its key is revoked, cancel the request to
        the inference server."""
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        answer = asyncio.ensure_future(self._answer(scope, send_and_note))
        gone = asyncio.ensure_future(disconnected(receive))
        revoked = asyncio.ensure_future(self._state.hub.until_revoked(self._principal.use))
        try:
            await asyncio.wait((answer, gone, revoked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_revoked = revoked.done() and not answer.done()
            for task in (gone, revoked, answer):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answer
        if was_revoked and not started:
            raise keys.revoked()
        if was_revoked and self._is_stream:
            await _end_with(keys.revoked(), Request(scope), send)

    async def _answer(self, scope: Scope, send: Send) -> None:
        request_id = str(scope.get("state", {}).get("request_id", ""))
        asked = answering(self._state, self._principal, self._question, request_id)
        async with asked as response:
            if self._is_stream:
                await _stream(response, Request(scope), send)
            else:
                await _send_whole(response, scope, send)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Request to the inference server."""

    path: str
    """Path below /v1."""
    model: str
    body: bytes
    completions: int
    """Number of answers that the request asks for."""

    @classmethod
    def of(cls, request: Sampling, principal: Principal, path: str, completions: int) -> Question:
        # The engine keeps the prefixes of projects apart by this field (vLLM's name). So
        # `cached_tokens` and the time of an answer show nothing about the prompts of other
        # projects.
        body = request.for_engine() | {"cache_salt": principal.project_id}
        return cls(
            path=path, model=request.model, body=json.dumps(body).encode(), completions=completions
        )


@asynccontextmanager
async def answering(
    state: State, principal: Principal, question: Question, request_id: str
) -> AsyncIterator[httpx.Response]:
    """Send a request to the inference server, under the limits of the caller's key, and yield the
    response before its body is read. Raises ServiceError if the request is refused."""
    inference = state.inference
    with inference.admitted(principal.key_id, question.completions, len(question.body)):
        model = await run_in(Plane.CHAT, partial(_resolve, state, principal, question.model))
        response = await inference.answer(model, question.path, question.body, request_id)
        try:
            yield response
        finally:
            await response.aclose()


def _resolve(state: State, principal: Principal, name: str) -> ServedModel:
    with project_reader(state, principal) as session:
        return served_models.resolve(session, state.settings, name)


async def disconnected(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(response: httpx.Response, scope: Scope, send: Send) -> None:
    from httpx import HTTPError

    try:
        content = await response.aread()
    except HTTPError:
        raise interrupted() from None
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
        async for events in whole_events(response):
            await send({"type": "http.response.body", "body": events, "more_body": True})
    except HTTPError:
        await _end_with(interrupted(), request, send)
    else:
        await send({"type": "http.response.body", "body": b""})


async def whole_events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield complete events; an incomplete event at the end of a broken stream is dropped.

    An event with the log-probs of a long prompt arrives in many pieces. To stay fast, the search
    for the end of an event reads each piece only once.
    """
    rest = bytearray()
    async for piece in response.aiter_bytes():
        new = max(0, len(rest) - 3)  # the end of an event may be divided between two pieces
        rest += piece
        if stop := max(_stop_of(rest, end, new) for end in _ENDS):
            yield bytes(rest[:stop])
            del rest[:stop]
    if rest.strip():
        yield bytes(rest) + b"\n\n"


def _stop_of(content: bytearray, end: bytes, start: int) -> int:
    found = content.rfind(end, start)
    return 0 if found < 0 else found + len(end)


def interrupted() -> ServiceError:
    return Unavailable(
        ErrorCode.UNAVAILABLE,
        "the inference server ended before the answer was complete",
        hint="send the request again",
    )


async def _end_with(error: ServiceError, request: Request, send: Send) -> None:
    body = ErrorBody(
        message=error.message,
        type=error.type,
        code=error.code,
        hint=error.hint,
        retryable=error.retryable,
        request_id=getattr(request.state, "request_id", None),
    )
    event = f"data: {ErrorEnvelope(error=body).model_dump_json()}\n\n".encode()
    await send({"type": "http.response.body", "body": event})


def _engine_of(response: httpx.Response) -> dict[str, str]:
    engine = response.headers.get(_ENGINE, "")
    return {_ENGINE: engine} if engine.isalnum() and len(engine) < 40 else {}
