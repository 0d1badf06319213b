"""HTTP connection to an inference server, and the conversion of its error responses to our
errors."""

from __future__ import annotations

import logging
from typing import Any

import httpx
from pydantic import ValidationError

from tunesmith_schema import ErrorBody, ErrorCode, ErrorEnvelope
from tunesmith_server.core.errors import (
    BadRequest,
    EngineFailed,
    NotFound,
    ServiceError,
    TooManyRequests,
    Unavailable,
)

log = logging.getLogger(__name__)

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every request

CONNECT_SECONDS = 5.0
READ_SECONDS = 600.0
"""Maximum seconds without a byte from the inference server. A queued request may wait this long."""
MAX_RETRY_AFTER = 120
"""Largest Retry-After, in seconds, that OpenAI's client follows."""
_MAX_ERROR_BYTES = 64 * 1024


def new_client(url: str, token: str, socket: str | None = None) -> httpx.AsyncClient:
    """Return a client for one inference server. The client ignores the proxy that the environment
    names.
    `socket`: Unix socket that the server listens on, in place of the host in `url`."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
    return httpx.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {token}"} if token else {},
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        limits=limits,
        transport=httpx.AsyncHTTPTransport(uds=socket, limits=limits) if socket else None,
        trust_env=False,
    )


async def is_ours(url: str, token: str) -> bool:
    """Return True if the server at `url` is our inference process. Raises Unavailable if the server
    does not answer."""
    async with new_client(url, token) as client:
        try:
            reply = await client.get("/health", timeout=CONNECT_SECONDS)
            body = reply.json()
            return isinstance(body, dict) and body.get("server") == "tunesmith-inference"
        except httpx.TransportError as error:
            raise unreachable(url, error) from error
        except ValueError:  # vLLM answers without a body
            return False


def unreachable(url: str, error: Exception) -> Unavailable:
    log.warning("the inference server %s does not answer: %s", url, error or type(error).__name__)
    return Unavailable(
        ErrorCode.UNAVAILABLE,
        "the inference server does not answer",
        hint="repeat the request; if it fails again, start the inference server, or correct "
        "TUNESMITH_INFERENCE_URL",
    )


async def error_of(response: httpx.Response) -> ErrorBody:
    """Read the error in the body of an error response, and close the response."""
    content = bytearray()
    try:
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > _MAX_ERROR_BYTES:
                break
    finally:
        await response.aclose()
    try:
        return ErrorEnvelope.model_validate_json(bytes(content)).error
    except ValidationError:
        return _other_error(bytes(content), response.status_code)


def _other_error(content: bytes, status: int) -> ErrorBody:
    try:
        document: Any = httpx.Response(status, content=content).json()  # Any: JSON
    except ValueError:
        document = None
    inner = document.get("error", document) if isinstance(document, dict) else None
    fields = inner if isinstance(inner, dict) else {}
    message, param = fields.get("message"), fields.get("param")
    return ErrorBody(
        message=message if isinstance(message, str) else f"status {status} without a message",
        type="invalid_request_error",
        param=param if isinstance(param, str) else None,
    )


def refusal(response: httpx.Response, error: ErrorBody) -> ServiceError:
    """Return our error for an error response of the inference server."""
    status, message = response.status_code, error.message[:2000]
    if status in (401, 403):
        return Unavailable(
            ErrorCode.UNAVAILABLE, "the inference server refuses the API's token",
            hint="set TUNESMITH_INFERENCE_TOKEN to the token of the inference server",
        )  # fmt: skip
    known = {str(code): code for code in ErrorCode}
    if status in (429, 503):
        kind = TooManyRequests if status == 429 else Unavailable
        code = known.get(error.code or "", ErrorCode.UNAVAILABLE)
        code = ErrorCode.RATE_LIMIT_EXCEEDED if status == 429 else code
        wait = response.headers.get("retry-after", "")
        seconds = min(int(wait), MAX_RETRY_AFTER) if wait.isdecimal() and len(wait) < 9 else 2
        headers = {"retry-after": str(seconds)}
        hint = error.hint or f"repeat the request after {seconds} s"
        return kind(code, message, hint=hint, headers=headers)
    if status == 404:
        return NotFound(ErrorCode.MODEL_NOT_FOUND, message, param="model", hint=error.hint)
    if status < 500:
        code = known.get(error.code or "", ErrorCode.INVALID_REQUEST)
        return BadRequest(code, message, param=error.param, hint=error.hint)
    log.error("the inference server failed with status %d: %s", status, message)
    if error.code != ErrorCode.INTERNAL:
        message = "its log has the reason"  # a text of another server may name files of its host
    return EngineFailed(
        ErrorCode.INTERNAL, f"the inference server failed: {message}",
        hint=error.hint or "the log of the inference server has the reason",
    )  # fmt: skip
