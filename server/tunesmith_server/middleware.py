"""Middleware for all requests: request id, body limit, access log, response to unhandled errors."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import TooLarge, service_error_response, unhandled_error_response
from tunesmith_server.core.security import KEY_PREFIX

from .body_limits import body_limit

log = logging.getLogger("tunesmith.access")

_ID = re.compile(rf"(?!{KEY_PREFIX})[A-Za-z0-9._-]{{1,64}}")
"""Pattern of the request ids that a caller may choose.

An API key is not a valid request id, because the log shows request ids and must not show keys.
"""
CLIENT_LEFT = 499
"""Status in the access log of a request whose client disconnected; nginx uses the same number."""


class RequestEnvelope:
    """ASGI middleware. The caller's `X-Request-ID`, if valid, becomes the request id."""

    def __init__(self, app: ASGIApp, *, max_upload_bytes: int) -> None:
        self._app = app
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        callers_id = request.headers.get("x-request-id", "")
        request_id = callers_id if _ID.fullmatch(callers_id) else f"req-{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        limit = body_limit(scope["path"], self._max_upload_bytes)
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(scope["path"], received, limit)
            return message

        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:19]) > limit:
            response = service_error_response(
                request, _too_large(scope["path"], int(announced), limit)
            )
            await response(scope, receive, send_with_id)
        else:
            try:
                await self._app(scope, receive_within_limit, send_with_id)
            except ClientDisconnect:
                status = status or CLIENT_LEFT
            except Exception as error:
                if status:
                    raise  # the response has started and can only be cut off
                await unhandled_error_response(request, error)(scope, receive, send_with_id)
        log.info(
            "%s %s %d %.1f ms %s",
            scope["method"], scope["path"], status,
            (time.perf_counter() - started) * 1000, request_id,
        )  # fmt: skip


def _too_large(path: str, size: int, limit: int) -> TooLarge:
    hint = "send a smaller request: GET /docs lists every field with its bounds"
    if path.startswith(("/v1/files", "/v1/uploads/", "/portal/data/upload")):
        hint = (
            "send a large file in parts of at most 64 MiB with POST /v1/uploads (the SDK does so "
            "automatically), or ask the operator to raise TUNESMITH_MAX_FILE_BYTES"
        )
    return TooLarge(
        ErrorCode.REQUEST_TOO_LARGE,
        f"the body has at least {size:,} bytes; the limit is {limit:,}",
        hint=hint,
    )
