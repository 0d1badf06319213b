"""Errors of the inference process, in OpenAI's envelope."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from tunesmith_worker.engine.serving.protocol import (
    DoesNotFit,
    QueueFull,
    ServingError,
    UnusableGrammar,
)


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


def as_api_error(error: Exception) -> ApiError:
    """Return the error that a caller sees for an exception of the engine."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)
    if isinstance(error, UnusableGrammar):
        return ApiError(400, str(error), code="invalid_request", param="response_format")
    if isinstance(error, DoesNotFit):
        return ApiError(503, str(error), code="out_of_memory", retry_after=30)
    if isinstance(error, ServingError):
        return ApiError(503, str(error), code="unavailable", retry_after=5)
    return ApiError(500, f"generation failed: {error}", code="internal_error")
