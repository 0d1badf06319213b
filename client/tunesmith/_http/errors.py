"""Errors of the SDK, and the conversion of HTTP responses to errors."""

# TunesmithError
# ├── InvalidArgumentError (ValueError)
# ├── APIConnectionError (ConnectionError)
# │   └── APITimeoutError (TimeoutError)
# ├── APIResponseError
# ├── APIStatusError
# │   ├── BadRequestError            400
# │   ├── AuthenticationError        401
# │   ├── PermissionDeniedError      403
# │   ├── NotFoundError              404
# │   ├── ConflictError              409
# │   ├── UnprocessableEntityError   422
# │   ├── RateLimitError             429
# │   └── InternalServerError        500 and above
# ├── APIStreamError
# ├── JobNotSucceededError           in _sdk/job.py
# │   ├── JobFailedError (RuntimeError)
# │   └── JobCancelledError
# ├── WaitTimeoutError (TimeoutError)
# ├── UploadError (OSError)
# └── DownloadError (OSError)

from __future__ import annotations

from typing import Any

import httpx
from pydantic import ValidationError

from tunesmith_schema import ErrorBody, ErrorEnvelope
from tunesmith_schema.field_errors import field_errors

from .hints import in_python


class TunesmithError(Exception):
    """Base class of all errors of the SDK."""

    def __init__(
        self, message: str, *, hint: str | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = in_python(hint) if hint else None
        self.request_id = request_id

    def __str__(self) -> str:
        lines = [self.message]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        if self.request_id:
            lines.append(f"request id: {self.request_id}")
        return "\n".join(lines)


class InvalidArgumentError(TunesmithError, ValueError):
    """An argument is invalid; nothing was sent to the server."""


class APIConnectionError(TunesmithError, ConnectionError):
    """The connection to the server failed or broke."""


class APITimeoutError(APIConnectionError, TimeoutError):
    """The server accepted the connection, but did not answer in time."""


class APIResponseError(TunesmithError):
    """The server answered with success, but in a format that this version cannot read."""


class APIStatusError(TunesmithError):
    """The server answered with an error status."""

    def __init__(
        self, error: ErrorBody, *, status_code: int, request_id: str | None, body: object
    ) -> None:
        super().__init__(error.message, hint=error.hint, request_id=request_id)
        self.status_code = status_code
        self.code = error.code
        self.type = error.type
        self.param = error.param
        self.retryable = error.retryable
        self.body = body


class APIStreamError(TunesmithError):
    """The server reported an error after it had sent the first part of a streamed answer."""

    def __init__(self, error: ErrorBody, *, request_id: str | None) -> None:
        super().__init__(error.message, hint=error.hint, request_id=request_id)
        self.code = error.code
        self.type = error.type
        self.param = error.param
        self.retryable = error.retryable


class BadRequestError(APIStatusError):
    """400: the server refused a value of the request; `param` names the field."""


class AuthenticationError(APIStatusError):
    """401: the API key is unknown or was revoked."""


class PermissionDeniedError(APIStatusError):
    """403: the API key does not permit this request."""


class NotFoundError(APIStatusError):
    """404: the object does not exist, or belongs to another user."""


class ConflictError(APIStatusError):
    """409: the state of the object does not allow this request."""


class UnprocessableEntityError(APIStatusError):
    """422: the server could not parse the request."""


class RateLimitError(APIStatusError):
    """429: there were too many requests, even after all retries."""


class InternalServerError(APIStatusError):
    """500 and above: the server failed, even after all retries."""


class WaitTimeoutError(TunesmithError, TimeoutError):
    """Waiting took longer than `timeout`. The job, evaluation or validation continues on
    the server."""


class UploadError(TunesmithError, OSError):
    """The uploaded bytes differ from the local file: the file changed, or the transfer damaged the
    bytes."""


class DownloadError(TunesmithError, OSError):
    """The download failed: there is no result yet, a sha256 is wrong, or the target already
    exists."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(response: httpx.Response, base_url: str) -> APIStatusError:
    """Return the error for a response that is not 2xx. The caller must have read the response's
    body."""
    status = response.status_code
    body: Any = None  # Any: a proxy may answer with anything
    try:
        body = response.json()
        error = ErrorEnvelope.model_validate(body).error
        if status == 404 and response.request.url.path in error.message:  # no such route
            error.hint = v1_hint(base_url) or error.hint
    except (ValueError, ValidationError):
        error = _unexpected_body(response, base_url)
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    return kind(
        error,
        status_code=status,
        request_id=error.request_id or response.headers.get("x-request-id"),
        body=body if body is not None else response.text,
    )


def v1_hint(base_url: str) -> str | None:
    """Return a hint if the base URL does not end in `/v1`, else None."""
    url = base_url.rstrip("/")
    if url.endswith("/v1"):
        return None
    return f"the base URL {url} lacks /v1: set base_url= or TUNESMITH_BASE_URL to {url}/v1"


def _unexpected_body(response: httpx.Response, base_url: str) -> ErrorBody:
    url = response.request.url
    if response.has_redirect_location:
        return ErrorBody(
            message=f"{url} was redirected to {response.headers['location']}",
            type="redirect",
            hint="only GET requests follow redirects: set the base URL to the final address",
        )
    return ErrorBody(
        message=f"{url} answered with status {response.status_code}, but the answer is not from a "
        "Tunesmith server",
        type="unknown_error",
        hint=v1_hint(base_url) or f"check that {base_url} is the address of a Tunesmith server",
    )


def invalid_argument(error: ValidationError) -> InvalidArgumentError:
    """Convert pydantic's errors to one line per field: dotted name, value, problem."""
    lines = []
    for field in field_errors(error.errors(include_url=False)):
        value = field.first["input"]
        shown = "" if isinstance(value, dict) else f" (got {value!r:.80})"
        lines.append(f"{field.name}{shown}: {field.message}" if field.name else field.message)
    return InvalidArgumentError("\n".join(lines))
