"""Errors with their HTTP status, and the body of every error response.

Every error, including FastAPI's and Starlette's own, is sent as OpenAI's error envelope with a
hint, `retryable` and the request id.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, DBAPIError
from starlette.exceptions import HTTPException

from tunesmith_schema import ErrorBody, ErrorCode, ErrorEnvelope
from tunesmith_schema.field_errors import FieldError, field_errors

from .database import is_database_outage
from .storage import StorageUnavailable

log = logging.getLogger(__name__)


class ServiceError(Exception):
    """Error sent to the client. Subclasses set the HTTP status and OpenAI's error type."""

    status = 400
    type = "invalid_request_error"
    retryable = False

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.hint = code, message, param, hint
        self.headers = headers or {}


class BadRequest(ServiceError):
    """Invalid request."""


class Unauthorized(ServiceError):
    """Missing or invalid key."""

    status = 401
    type = "authentication_error"


class Forbidden(ServiceError):
    """Valid key without the right to send this request."""

    status = 403
    type = "permission_error"


class QuotaExceeded(ServiceError):
    """Project that has used up its quota of stored bytes."""

    status = 403
    type = "insufficient_quota"


class NotFound(ServiceError):
    """Unknown route or object."""

    status = 404


class MethodNotAllowed(ServiceError):
    """Method that the address does not accept."""

    status = 405


class Conflict(ServiceError):
    """Request that contradicts stored data; repeating the request does not help."""

    status = 409


class TooLarge(ServiceError):
    """Body above a size limit."""

    status = 413


class RangeNotSatisfiable(ServiceError):
    """Byte range outside the content."""

    status = 416


class TooManyRequests(ServiceError):
    """A rate limit is reached or a queue is full; the same request may succeed later."""

    status = 429
    type = "rate_limit_error"
    retryable = True


class Unavailable(ServiceError):
    """Temporary failure; the same request may succeed later."""

    status = 503
    type = "service_unavailable"
    retryable = True


class DiskFull(ServiceError):
    """The disk is full; the request stored nothing."""

    status = 507
    type = "service_unavailable"
    retryable = True


class EngineFailed(ServiceError):
    """Failure of the inference server in a request that it had accepted."""

    status = 500
    type = "server_error"


class StorageReadOnly(ServiceError):
    """Storage that refuses writes until an operator fixes the cause."""

    status = 500
    type = "server_error"


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_REFUSED_WRITES = (errno.EROFS, errno.EACCES, errno.EPERM)
_WRITE_REFUSED = tuple(f"os error {number}" for number in _REFUSED_WRITES)
_WRITE_REFUSED += ("AccessDenied", "403 Forbidden")
"""Texts in obstore's messages that mean a refused write: a read-only file system, missing
permissions, or a bucket's policy."""

_BY_STATUS = {
    401: ErrorCode.INVALID_API_KEY,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.REQUEST_TOO_LARGE,
    503: ErrorCode.UNAVAILABLE,
}
_HINTS = dict.fromkeys((404, 405), "GET /docs lists the routes")


def error_response(request: Request, status: int, body: ErrorBody) -> JSONResponse:
    body.request_id = getattr(request.state, "request_id", None)
    headers = {"retry-after": "2"} if body.retryable else {"x-should-retry": "false"}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(ErrorEnvelope(error=body).model_dump(), status_code=status, headers=headers)


def service_error_response(request: Request, error: ServiceError) -> JSONResponse:
    body = ErrorBody(
        message=error.message,
        type=error.type,
        param=error.param,
        code=error.code,
        hint=error.hint,
        retryable=error.retryable,
    )
    response = error_response(request, error.status, body)
    response.headers.update(error.headers)
    return response


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if a write failed because the disk is full (Python, storage or database)."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        text = str(error)  # obstore's errors have the errno only in their text
        if any(f"os error {number})" in text for number in _NO_SPACE):
            return True
        if "database or disk is full" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def is_read_only(error: StorageUnavailable) -> bool:
    """Return True if the store refused a write, False if the store did not answer."""
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in _REFUSED_WRITES:
        return True
    return any(words in f"{error} {error.__cause__}" for words in _WRITE_REFUSED)


def _disk_full_response(request: Request, error: BaseException) -> JSONResponse:
    log.error("disk full in %s %s: %s", request.method, request.url.path, error)
    refusal = DiskFull(
        ErrorCode.DISK_FULL,
        "the server's disk is full: nothing of this request was stored",
        hint="ask the operator to free space in the data directory, then repeat the request",
    )
    return service_error_response(request, refusal)


def unhandled_error_response(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an error that no route handles."""
    if is_disk_full(error):
        return _disk_full_response(request, error)
    return _bug_response(request, error)


def _bug_response(request: Request, error: Exception) -> JSONResponse:
    body = ErrorBody(
        message=f"internal error: {type(error).__name__}",
        type="server_error",
        code=ErrorCode.INTERNAL,
        hint="this is a bug: the server's log has the traceback under this request id",
        retryable=True,
    )
    response = error_response(request, 500, body)
    log.error(
        "unhandled error in %s %s (%s)", request.method, request.url.path, body.request_id,
        exc_info=error,
    )  # fmt: skip
    return response


def validation_body(errors: list[dict[str, Any]]) -> ErrorBody:
    """Return pydantic's first error in OpenAI's format."""
    fields = field_errors(errors)
    body = _body_of(fields[0])
    if len(fields) > 1 and fields[0].first["type"] != "unknown_field":
        body.hint = f"{len(fields)} errors; this is the first"
    return body


def validation_bodies(errors: list[dict[str, Any]]) -> list[ErrorBody]:
    """Return one error per field in OpenAI's format."""
    return [_body_of(field) for field in field_errors(errors)]


def _body_of(field: FieldError) -> ErrorBody:
    first = field.first
    code = ErrorCode.INVALID_REQUEST
    loc = [_short(part) for part in field.path]
    if loc[:1] in (["body"], ["query"], ["path"], ["header"]):
        loc.pop(0)
    if first["type"] == "unknown_field":
        code = ErrorCode.UNKNOWN_FIELD
        loc.append(str(first["ctx"]["field"]))
    param = ".".join(loc) or None
    if first["type"] == "not_supported":
        code = ErrorCode.NOT_SUPPORTED
    message = field.message
    if first["type"] == "model_attributes_type" and param is None:
        message = "the body must be a JSON object with 'Content-Type: application/json'"
    if first["type"] == "json_invalid":
        param, message = None, f"the body is not valid JSON: {first['ctx']['error']}"
    value = first.get("input")
    if isinstance(value, str | int | float | bool) and first["type"] != "missing":
        message += f" (got {str(value)[:80]!r})"
    return ErrorBody(
        message=f"{param}: {message}" if param else message,
        type="invalid_request_error",
        param=param,
        code=code,
        hint=_hint(first, loc),
    )


def _short(part: str | int) -> str:
    """Shorten an element of a field's path to 80 characters. A key of the caller's JSON may be very
    long."""
    return str(part)[:80].encode(errors="replace").decode()


def _hint(first: Mapping[str, Any], loc: list[str]) -> str:
    if first["type"] == "unknown_field":
        return str(first["ctx"]["advice"])
    if loc[:1] == ["recipe"]:
        return "docs/reference/recipe.md lists every recipe field with its bounds"
    return "GET /docs lists every field with its bounds"


def install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ServiceError)
    async def _service_error(request: Request, error: ServiceError) -> JSONResponse:
        return service_error_response(request, error)

    @app.exception_handler(RequestValidationError)
    async def _malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(request, 400, validation_body(list(error.errors())))

    @app.exception_handler(DataError)
    async def _unstorable(request: Request, error: DataError) -> JSONResponse:
        refusal = BadRequest(
            ErrorCode.INVALID_REQUEST,
            "a value in the request cannot be stored",
            hint="remove NUL characters, and shorten very long numbers and texts",
        )
        return service_error_response(request, refusal)

    @app.exception_handler(DBAPIError)
    async def _no_database(request: Request, error: DBAPIError) -> JSONResponse:
        if is_disk_full(error) or not is_database_outage(error):
            return unhandled_error_response(request, error)
        log.error(
            "database: %s in %s %s", str(error.orig).partition("\n")[0], request.method,
            request.url.path,
        )  # fmt: skip
        refusal = Unavailable(
            ErrorCode.UNAVAILABLE, "the server's database failed or did not answer",
            hint="repeat the request; the server's log has the reason",
        )  # fmt: skip
        return service_error_response(request, refusal)

    @app.exception_handler(StorageUnavailable)
    async def _no_storage(request: Request, error: StorageUnavailable) -> JSONResponse:
        if is_disk_full(error):
            return _disk_full_response(request, error)
        log.error("storage: %s", error)
        if is_read_only(error):
            refused = StorageReadOnly(
                ErrorCode.STORAGE_READ_ONLY,
                "the server's storage refuses writes",
                hint="ask the operator to check TUNESMITH_STORAGE_URL: the file system may "
                "be read-only, or write permission may be missing; the server's log has the error",
            )
            return service_error_response(request, refused)
        refusal = Unavailable(
            ErrorCode.UNAVAILABLE, "the server's storage failed or did not answer",
            hint="repeat the request; the server's log has the reason",
        )  # fmt: skip
        return service_error_response(request, refusal)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ServiceError):
            # FastAPI turns every error during the reading of the body into a plain 400.
            return service_error_response(request, error.__cause__)
        if is_disk_full(error.__cause__):  # while spooling an upload
            return _disk_full_response(request, error.__cause__ or error)
        path = f"{request.method} {request.url.path}"
        message = {
            404: f"no route {path}",
            405: f"the route does not allow {path}",
        }.get(error.status_code, str(error.detail))
        body = ErrorBody(
            message=message,
            type="invalid_request_error" if error.status_code < 500 else "server_error",
            code=_BY_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST),
            hint=_HINTS.get(error.status_code, "GET /docs lists the parameters of each route"),
        )
        below_v1 = f"/v1{request.url.path}"
        if (
            error.status_code == 404
            and not request.url.path.startswith("/v1/")
            and _methods(app, below_v1)
        ):
            body.hint = f"the route is {below_v1}: the base URL must end in /v1"
        response = error_response(request, error.status_code, body)
        response.headers.update(error.headers or {})
        if error.status_code == 405 and (allowed := _methods(app, request.url.path)):
            response.headers["allow"] = allowed
        return response


def _methods(app: FastAPI, path: str) -> str:
    """Return all HTTP methods of a path. Starlette lists only the methods of the first matching
    route."""
    methods: set[str] = set()
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            methods.update(name.upper() for name in operations)
    return ", ".join(sorted(methods))


REFUSALS: dict[int | str, dict[str, Any]] = {  # Any: FastAPI's own
    "4XX": {"model": ErrorEnvelope, "description": "Refused: the body has the reason and a hint."},
    "5XX": {
        "model": ErrorEnvelope,
        "description": "Failed: `retryable` is true if the same request may succeed later.",
    },
}
"""Error responses of every route, for the OpenAPI document."""
