"""Errors that carry their status, and the one place that makes an error's body.

Every refusal the process can give, FastAPI's and Starlette's own included, leaves as OpenAI's
envelope with a hint, `retryable` and the request id.
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
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException

from tunesmith_schema import ErrorBody, ErrorCode, ErrorEnvelope
from tunesmith_schema.field_errors import field_errors

from .storage import StorageUnavailable

log = logging.getLogger(__name__)


class ServiceError(Exception):
    """A refusal. Subclasses fix status and OpenAI's coarse type."""

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
    """The request cannot be served as it is."""


class Unauthorized(ServiceError):
    """No key, or one that is not valid."""

    status = 401
    type = "authentication_error"


class NotFound(ServiceError):
    """No such thing, or not for this caller."""

    status = 404


class Conflict(ServiceError):
    """It contradicts what is stored; sending it again does not help."""

    status = 409


class TooLarge(ServiceError):
    """The body is over a limit."""

    status = 413


class RangeNotSatisfiable(ServiceError):
    """The asked-for bytes do not exist."""

    status = 416


class Unavailable(ServiceError):
    """Not now; the same request may succeed in a moment."""

    status = 503
    type = "service_unavailable"
    retryable = True


class DiskFull(ServiceError):
    """No space for what the request brought; nothing of it was kept."""

    status = 507
    type = "service_unavailable"
    retryable = True


class StorageReadOnly(ServiceError):
    """The store takes no writes, and will not until an operator has mended that."""

    status = 500
    type = "server_error"


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_REFUSED = tuple(f"os error {number}" for number in (errno.EROFS, errno.EACCES, errno.EPERM))
_REFUSED += ("AccessDenied", "403 Forbidden")
"""How obstore words a read-only file system, a folder of somebody else's, and a bucket's policy."""

_BY_STATUS = {
    401: ErrorCode.INVALID_API_KEY,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.REQUEST_TOO_LARGE,
    503: ErrorCode.UNAVAILABLE,
}
_HINTS = dict.fromkeys((404, 405), "routes are listed at /docs")


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
    """Whether a write failed for want of space, be it Python's, the storage's or the database's."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        text = str(error)  # the storage is written in Rust, which has errors of its own
        if any(f"os error {number})" in text for number in _NO_SPACE):
            return True
        if "database or disk is full" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def is_read_only(error: StorageUnavailable) -> bool:
    """Whether the store refused, as opposed to not answering."""
    return any(words in f"{error} {error.__cause__}" for words in _REFUSED)


def _disk_full_response(request: Request, error: BaseException) -> JSONResponse:
    log.error("disk full in %s %s: %s", request.method, request.url.path, error)
    refusal = DiskFull(
        ErrorCode.DISK_FULL,
        "the server's disk is full: nothing of this request was kept",
        hint="have the operator free space in the data directory, then send it again",
    )
    return service_error_response(request, refusal)


def unforeseen_response(request: Request, error: Exception) -> JSONResponse:
    """The answer to an error that no route foresaw."""
    if is_disk_full(error):
        return _disk_full_response(request, error)
    return _bug_response(request, error)


def _bug_response(request: Request, error: Exception) -> JSONResponse:
    """The log has the text, the caller the id."""
    body = ErrorBody(
        message=f"internal error: {type(error).__name__}",
        type="server_error",
        code=ErrorCode.INTERNAL,
        hint="a bug of ours: the server's log has the traceback under this request id",
        retryable=True,
    )
    response = error_response(request, 500, body)
    log.error(
        "unhandled error in %s %s (%s)", request.method, request.url.path, body.request_id,
        exc_info=error,
    )  # fmt: skip
    return response


def validation_body(errors: list[dict[str, Any]]) -> ErrorBody:
    """Return pydantic's first error in OpenAI's form."""
    found = field_errors(errors)
    first = found[0].first
    code = ErrorCode.INVALID_REQUEST
    loc = [str(part) for part in found[0].path]
    if loc[:1] in (["body"], ["query"], ["path"], ["header"]):
        loc.pop(0)
    if first["type"] == "unknown_field":
        code = ErrorCode.UNKNOWN_FIELD
        loc.append(str(first["ctx"]["field"]))
    param = ".".join(loc) or None
    message = found[0].message
    if first["type"] == "model_attributes_type" and param is None:
        message = "the body is not a JSON object sent as 'Content-Type: application/json'"
    if first["type"] == "json_invalid":
        param, message = None, f"the body is not valid JSON: {first['ctx']['error']}"
    given = first.get("input")
    if isinstance(given, str | int | float | bool) and first["type"] != "missing":
        message += f" (got {str(given)[:80]!r})"
    return ErrorBody(
        message=f"{param}: {message}" if param else message,
        type="invalid_request_error",
        param=param,
        code=code,
        hint=_advice(first, loc, len(found)),
    )


def _advice(first: Mapping[str, Any], loc: list[str], count: int) -> str:
    if first["type"] == "unknown_field":
        return str(first["ctx"]["advice"])
    if count > 1:
        return f"{count} errors; this is the first"
    if loc[:1] == ["recipe"]:
        return "docs/reference/recipe.md has every field of the recipe with its bounds"
    return "/docs has every field with its bounds"


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
            "a value in the request cannot be looked up or stored",
            hint="is there a NUL character, or a number or text that is far too long?",
        )
        return service_error_response(request, refusal)

    @app.exception_handler(StorageUnavailable)
    async def _no_storage(request: Request, error: StorageUnavailable) -> JSONResponse:
        if is_disk_full(error):
            return _disk_full_response(request, error)
        log.error("storage: %s", error)
        if is_read_only(error):
            refused = StorageReadOnly(
                ErrorCode.STORAGE_READ_ONLY,
                "the server's storage takes no writes",
                hint="have the operator look at TUNESMITH_STORAGE_URL: is the file system mounted "
                "read-only, or may its owner no longer write there? The server's log has the words",
            )
            return service_error_response(request, refused)
        refusal = Unavailable(
            ErrorCode.UNAVAILABLE, "the storage did not do what was asked of it",
            hint="the server's log says why; the same request may succeed in a moment",
        )  # fmt: skip
        return service_error_response(request, refusal)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ServiceError):
            # FastAPI turns whatever stopped it from reading the body into a plain 400.
            return service_error_response(request, error.__cause__)
        if is_disk_full(error.__cause__):  # the upload's spool
            return _disk_full_response(request, error.__cause__ or error)
        path = f"{request.method} {request.url.path}"
        message = {
            404: f"no route {path}",
            405: f"{path} is not allowed",
        }.get(error.status_code, str(error.detail))
        body = ErrorBody(
            message=message,
            type="invalid_request_error" if error.status_code < 500 else "server_error",
            code=_BY_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST),
            hint=_HINTS.get(error.status_code, "/docs has what each route takes"),
        )
        response = error_response(request, error.status_code, body)
        response.headers.update(error.headers or {})
        if error.status_code == 405 and (allowed := _allowed(app, request.url.path)):
            response.headers["allow"] = allowed
        return response


def _allowed(app: FastAPI, path: str) -> str:
    """Every method of the path. Starlette names those of the first route that has it."""
    methods: set[str] = set()
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            methods.update(name.upper() for name in operations)
    return ", ".join(sorted(methods))


REFUSALS: dict[int | str, dict[str, Any]] = {  # Any: FastAPI's own
    "4XX": {"model": ErrorEnvelope, "description": "Refused: the body says why, and what to do."},
    "5XX": {"model": ErrorEnvelope, "description": "Failed: `retryable` says whether to repeat."},
}
"""For the OpenAPI document: what every route may answer."""
