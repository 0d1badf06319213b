"""Middleware for all requests: request id, body limit, access log, response to unhandled errors."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunesmith_schema import MAX_PART_BYTES, ErrorCode
from tunesmith_server.core.errors import TooLarge, service_error_response, unhandled_error_response

log = logging.getLogger("tunesmith.access")

_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
_PARTS = re.compile(r"^/v1/uploads/[^/]+/parts$")
_MULTIPART_BYTES = 64 * 1024
"""Upper bound on the bytes that multipart encoding adds to a file."""
JSON_BYTES = 4 * 1024 * 1024
"""Largest body of a request that is not an upload."""


class RequestEnvelope:
    """ASGI middleware. The caller's `X-Request-ID`, if valid, becomes the request id."""

    def __init__(self, app: ASGIApp, *, max_upload_bytes: int) -> None:
        self._app = app
        self._max_upload_bytes = max_upload_bytes + _MULTIPART_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        callers_id = request.headers.get("x-request-id", "")
        request_id = callers_id if _ID.match(callers_id) else f"req-{secrets.token_hex(8)}"
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

        limit = self._limit(scope["path"])
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if limit and received > limit:
                raise _too_large(received, limit)
            return message

        announced = request.headers.get("content-length", "0")
        if limit and announced.isdecimal() and int(announced) > limit:
            response = service_error_response(request, _too_large(int(announced), limit))
            await response(scope, receive, send_with_id)
        else:
            try:
                await self._app(scope, receive_within_limit, send_with_id)
            except Exception as error:
                if status:
                    raise  # the response has started and can only be cut off
                await unhandled_error_response(request, error)(scope, receive, send_with_id)
        log.info(
            "%s %s %d %.1f ms %s",
            scope["method"], scope["path"], status,
            (time.perf_counter() - started) * 1000, request_id,
        )  # fmt: skip

    def _limit(self, path: str) -> int | None:
        if path.startswith("/internal/") and "/blobs/" in path:
            return None  # weights from an authenticated worker have no limit
        if _PARTS.match(path):
            return MAX_PART_BYTES + _MULTIPART_BYTES
        return self._max_upload_bytes if path == "/v1/files" else JSON_BYTES


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        ErrorCode.REQUEST_TOO_LARGE,
        f"the body has at least {size:,} bytes; the limit is {limit:,}",
        hint="send a large file in parts of at most 64 MiB with POST /v1/uploads (the SDK does so "
        "automatically), or ask the operator to raise TUNESMITH_MAX_FILE_BYTES",
    )
