"""Route that answers a prompt with up to four models in one response.

All answers share one response. Lines of this response are JSON objects. A line of an answer names
the answer's column on the page (one column per model). A browser opens at most six connections to a
host for all tabs together, and the live stream uses one of these connections. If each answer had
its own response, four answers and the live stream would use five of the six connections. With a
second playground, no connection would be free for other tabs. With one response, all answers are
cancelled together when the user clicks Stop, closes the tab or signs out. The page cannot use the
`/v1` routes, because the cookie of the session is valid only for the portal. This route and
`/v1/chat/completions` both call `api.chat.answering`. Therefore, the check of model and parameters,
the limits of the key and the separation of projects are the same in this route and in
`/v1/chat/completions`. For the rate limit, each column counts as one request. The same callers may
use this route and `POST /chat/completions` (identity/policy.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from functools import partial
from typing import Any

from pydantic import Field, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tunesmith_schema import ChatMessage, ErrorCode
from tunesmith_schema.base import Request
from tunesmith_schema.chat import MAX_MESSAGES
from tunesmith_schema.sampling import ModelName
from tunesmith_server.api import chat, large_bodies
from tunesmith_server.api.bounds import BoundedRequest
from tunesmith_server.api.deps import State, state_of
from tunesmith_server.core.errors import (
    BadRequest,
    EngineFailed,
    ServiceError,
    Unauthorized,
    service_error_response,
    validation_bodies,
)
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.principal import Principal
from tunesmith_server.portal import cookies, routing, security, text
from tunesmith_server.services import sessions

from . import form
from .answer import Answer
from .differences import differing

log = logging.getLogger(__name__)

ROUTE = "POST /chat/completions"
SESSION_SECONDS = 2.0
"""Time between two checks that the session and its key still exist and that the key may chat."""
PING_SECONDS = 10.0
"""Seconds without data after which an empty line is sent, so that proxies do not close the
connection."""
_WAITING = 256
"""Maximum number of lines that wait for a slow browser; at this number, the answers are not read
further."""


class _Column(Request):
    model: ModelName
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)


class _Asked(Request):
    settings: dict[str, str] = Field(max_length=40)
    """Texts of the form's fields; the keys are field names."""
    columns: list[_Column] = Field(min_length=1, max_length=len(form.MODELS), fail_fast=True)


async def answer(request: HttpRequest) -> Response:
    """Start the answers. The response is a stream of lines, even if a column fails."""
    state = state_of(request)
    signed_in = await routing.visitor(request, Plane.CHAT)
    if signed_in is None:
        raise _session_ended()
    routing.require(signed_in, (ROUTE,), changing=True)
    bounded = BoundedRequest(request.scope, request.receive)
    async with large_bodies.admitted(bounded, is_form=False):
        asked = _read(await bounded.body())
        secret = cookies.secret_in(request) or ""
        return _Answers(state, signed_in.principal, secret, asked, request)


def _read(body: bytes) -> _Asked:
    try:
        return _Asked.model_validate_json(body)
    except ValidationError as error:
        found = validation_bodies([dict(item) for item in error.errors(include_url=False)])[0]
        raise BadRequest(
            ErrorCode(found.code or ErrorCode.INVALID_REQUEST),
            f"{found.param or 'body'}: {found.message}"[:1000],
            param=found.param,
            hint="load the page again",
        ) from None


class _Answers(Response):
    """Response with the lines of all columns as they arrive. At the end, the response has the
    positions of the words that differ between the answers."""

    def __init__(
        self, state: State, principal: Principal, secret: str, asked: _Asked, request: HttpRequest
    ) -> None:
        super().__init__(media_type="application/x-ndjson", headers=_HEADERS)
        self._state, self._principal, self._secret = state, principal, secret
        self._request, self._settings, self._columns = request, asked.settings, asked.columns
        self._answers = [Answer() for _ in asked.columns]
        self._lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_WAITING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines until all answers are complete. If the browser disconnects or the session
        ends, cancel the requests to the inference server."""
        del self.headers["content-length"]
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        lines = asyncio.ensure_future(self._send_lines(send))
        gone = asyncio.ensure_future(chat.disconnected(receive))
        ended = asyncio.ensure_future(self._until_ended())
        try:
            await asyncio.wait((lines, gone, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_ended = ended.done() and not lines.done()
            for task in (gone, ended, lines):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await lines
        last = [{"error": self._error(_session_ended())}] if has_ended else []
        await send({"type": "http.response.body", "body": _joined(last)})

    async def _send_lines(self, send: Send) -> None:
        columns = [asyncio.create_task(self._ask(at)) for at in range(len(self._columns))]
        try:
            names = [text.visible(column.model) for column in self._columns]
            last = self._columns[0].messages[-1].for_engine()["content"]
            await self._send(send, [{"names": names, "asked": text.visible(last)}])
            left = len(columns)
            while left:
                found = await self._next()
                left -= found.count(None)
                await self._send(send, [line for line in found if line is not None])
            if len(columns) > 1:
                texts = [item.texts for item in self._answers]
                differs = await run_in(Plane.CHAT, partial(differing, texts))
                await self._send(send, [{"differs": differs}])
        finally:
            for task in columns:
                task.cancel()
            await asyncio.gather(*columns, return_exceptions=True)

    async def _send(self, send: Send, lines: list[dict[str, Any]]) -> None:
        content = _joined(lines) or b"\n"
        await send({"type": "http.response.body", "body": content, "more_body": True})

    async def _next(self) -> list[dict[str, Any] | None]:
        """Return the waiting lines; an empty list after `PING_SECONDS` without lines.

        In the queue, None marks the end of a column.
        """
        try:
            async with asyncio.timeout(PING_SECONDS):
                found = [await self._lines.get()]
        except TimeoutError:
            return []
        while not self._lines.empty():
            found.append(self._lines.get_nowait())
        return found

    async def _ask(self, at: int) -> None:
        put = self._lines.put
        try:
            await self._put_answer(at)
        except ServiceError as error:
            await put({"column": at, "error": self._error(error)})
        except Exception:  # shown in the column; the other columns continue
            log.exception("an answer of the playground failed")
            failed = EngineFailed(
                ErrorCode.INTERNAL, "the server failed", hint="its log has the reason"
            )
            await put({"column": at, "error": self._error(failed)})
        await put(None)

    async def _put_answer(self, at: int) -> None:
        from httpx import HTTPError

        state, column, found = self._state, self._columns[at], self._answers[at]
        state.rate_limits.check(self._principal)
        body = form.request_of(self._settings, column.model, column.messages)
        question = chat.Question.of(body, self._principal, "/chat/completions", 1)
        request_id = str(getattr(self._request.state, "request_id", ""))
        async with chat.answering(state, self._principal, question, request_id) as response:
            try:
                async for events in chat.whole_events(response):
                    is_first = not found.texts
                    if pieces := found.read(events):
                        line = {"column": at, "pieces": pieces}
                        line |= {"figures": found.figures()} if is_first else {}
                        await self._lines.put(line)
            except HTTPError:
                raise chat.interrupted() from None
        await self._lines.put({"column": at, "done": True, "figures": found.figures()})

    async def _until_ended(self) -> None:
        """Wait until the session has ended, its key is no longer valid, or the key may no longer
        chat."""
        while True:
            await asyncio.sleep(SESSION_SECONDS)
            try:
                if not await run_in(Plane.CHAT, self._may_chat):
                    return
            except Exception:  # an unreachable database does not end answers
                log.exception("cannot check the session of a playground")

    def _may_chat(self) -> bool:
        with self._state.database.read() as session:
            signed_in = sessions.authenticate(session, self._secret)
        return signed_in is not None and "chat" in signed_in.principal.verbs

    def _error(self, error: ServiceError) -> dict[str, Any]:
        response = service_error_response(self._request, error)
        found: dict[str, Any] = json.loads(bytes(response.body))["error"]
        wait = response.headers.get("retry-after") if error.status == 429 else None
        found["message"] = text.sentence(text.visible(found["message"]))
        found["hint"] = found["hint"] and text.sentence(text.visible(found["hint"]))
        return found | {"retry_after": wait}


_HEADERS = {**security.HEADERS, "x-accel-buffering": "no"}


def _session_ended() -> ServiceError:
    return Unauthorized(
        ErrorCode.INVALID_API_KEY,
        "this session has ended, or its key may no longer chat",
        hint="sign in again; the form keeps its text",
    )


def _joined(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


route = Route(f"{form.HERE}/answers", answer, methods=["POST"])
