"""Every error the SDK raises, and how an HTTP answer becomes one. Knows nothing of retries."""

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
# ├── JobNotSucceededError
# │   ├── JobFailedError (RuntimeError)
# │   └── JobCancelledError
# ├── WaitTimeoutError (TimeoutError)
# ├── UploadError (OSError)
# └── DownloadError (OSError)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
from pydantic import ValidationError

from tunesmith_schema import ErrorBody, ErrorCategory, ErrorEnvelope, JobError
from tunesmith_schema.complaints import complaints

if TYPE_CHECKING:
    from tunesmith._sdk.job import Job


class TunesmithError(Exception):
    """The base of all of them."""

    def __init__(
        self, message: str, *, hint: str | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.request_id = request_id

    def __str__(self) -> str:
        lines = [self.message]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        if self.request_id:
            lines.append(f"request id: {self.request_id}")
        return "\n".join(lines)


class InvalidArgumentError(TunesmithError, ValueError):
    """An argument was refused before anything was sent."""


class APIConnectionError(TunesmithError, ConnectionError):
    """The server could not be reached, or the connection broke."""


class APITimeoutError(APIConnectionError, TimeoutError):
    """The server was reached and did not answer in time."""


class APIResponseError(TunesmithError):
    """The server said yes, in a form this version cannot read."""


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


class BadRequestError(APIStatusError):
    """400: a value in the request was refused; `param` names it."""


class AuthenticationError(APIStatusError):
    """401: the API key is unknown or was revoked."""


class PermissionDeniedError(APIStatusError):
    """403: the API key may not do this."""


class NotFoundError(APIStatusError):
    """404: no such object, or it belongs to somebody else."""


class ConflictError(APIStatusError):
    """409: the object is in a state that does not allow this."""


class UnprocessableEntityError(APIStatusError):
    """422: the request could not be parsed."""


class RateLimitError(APIStatusError):
    """429: too many requests, also after waiting as asked."""


class InternalServerError(APIStatusError):
    """500 and above: the server failed, also after retries."""


class JobNotSucceededError(TunesmithError):
    """A job that was waited for ended without a tuned model; `job` is its last form."""

    def __init__(self, message: str, *, job: Job, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job


class JobFailedError(JobNotSucceededError, RuntimeError):
    """The job ended as `failed`; `code` and `category` say why."""

    def __init__(self, job: Job) -> None:
        error = job.error or JobError()
        self.code: str | None = error.code
        self.category: ErrorCategory | None = error.category
        code = f" ({error.code})" if error.code else ""
        reason = error.message or "the server gave no reason"
        super().__init__(f"job {job.id} failed{code}: {reason}", job=job, hint=error.hint)


class JobCancelledError(JobNotSucceededError):
    """The job ended as `cancelled`."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"job {job.id} was cancelled", job=job)


class WaitTimeoutError(TunesmithError, TimeoutError):
    """What was waited for took longer than `timeout`; it goes on."""


class UploadError(TunesmithError, OSError):
    """What arrived is not what was read: the file changed meanwhile, or was damaged on the way."""


class DownloadError(TunesmithError, OSError):
    """There is nothing to download yet, it does not match its hash, or its target is in the way."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(response: httpx.Response) -> APIStatusError:
    """The error for an answer that is not 2xx. The body must have been read."""
    status = response.status_code
    body: Any = None  # Any: a proxy may answer with whatever it likes
    try:
        body = response.json()
        error = ErrorEnvelope.model_validate(body).error
    except (ValueError, ValidationError):
        error = _undocumented(response)
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    return kind(
        error,
        status_code=status,
        request_id=error.request_id or response.headers.get("x-request-id"),
        body=body if body is not None else response.text,
    )


def _undocumented(response: httpx.Response) -> ErrorBody:
    asked = f"{response.request.method} {response.request.url}"
    if response.has_redirect_location:
        return ErrorBody(
            message=f"{asked} was redirected to {response.headers['location']}",
            type="redirect",
            hint="requests that change something are not sent on: correct the base URL",
        )
    return ErrorBody(
        message=f"{asked} gave HTTP {response.status_code} without Tunesmith's error body",
        type="unknown_error",
        hint="check that the base URL is a Tunesmith server's and ends in /v1",
    )


def invalid_argument(error: ValidationError) -> InvalidArgumentError:
    """Pydantic's report in one line per field: the dotted name, what was wrong, the value."""
    lines = []
    for complaint in complaints(error.errors(include_url=False)):
        value = complaint.first["input"]
        shown = "" if isinstance(value, dict) else f" (got {value!r:.80})"
        name = complaint.name
        lines.append(f"{name}{shown}: {complaint.message}" if name else complaint.message)
    return InvalidArgumentError("\n".join(lines))
