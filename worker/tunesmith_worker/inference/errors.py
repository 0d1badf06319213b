"""Errors of the inference process, in OpenAI's envelope."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import JSONResponse

from tunesmith_worker.engine.serving.protocol import (
    DoesNotFit,
    QueueFull,
    ServingError,
    UnusableGrammar,
    UnusableOutput,
)

log = logging.getLogger(__name__)


class ApiError(Exception):
    """An error with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:  # Any: JSON values
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse(self.body(), self.status, headers)


def unsupported(param: str, reason: str) -> ApiError:
    return ApiError(400, f"{param} is not supported: {reason}", code="not_supported", param=param)


def invalid(param: str, message: str) -> ApiError:
    return ApiError(400, message, code="invalid_request", param=param)


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """Return the error that a caller sees for an exception of the engine, and log it.

    The texts of unexpected exceptions stay in the log, because such texts may name files of the
    host.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)
    if isinstance(error, UnusableGrammar):
        return ApiError(400, str(error), code="invalid_request", param="response_format")
    if isinstance(error, DoesNotFit):
        log.warning("request %s: %s", request_id, error)
        return ApiError(503, str(error), code="out_of_memory", retry_after=30)
    if isinstance(error, ServingError):
        log.warning("request %s: %s", request_id, error)
        return ApiError(503, str(error), code="unavailable", retry_after=5)
    if isinstance(error, UnusableOutput):
        log.warning("request %s: %s", request_id, error)
        return ApiError(500, f"generation failed: {error}", code="internal_error")
    log.error("request %s failed", request_id, exc_info=error)
    return ApiError(
        500,
        "generation failed; the log of the inference process has the reason under the request id "
        f"{request_id}",
        code="internal_error",
    )
