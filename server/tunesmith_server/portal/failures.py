"""Error pages, with the problem, the code, the remedy and the request id. The error handlers of the
API choose status and text, so an error has the same text on the page and in the API.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tunesmith_server.core.errors import unhandled_error_response

from . import rendering, security

_TITLES = {
    403: "Not allowed",
    404: "Nothing is here",
    405: "The page does not accept this request",
    429: "Too many requests",
    503: "The service does not answer",
}


async def respond(request: Request, error: Exception) -> Response:
    """Return an error as a page, or as a part of a page if a script sent the request."""
    body, response = await _as_of_the_api(request, error)
    status = response.status_code
    kept = ("allow", "retry-after")
    headers = {name: response.headers[name] for name in kept if name in response.headers}
    is_part = "hx-request" in request.headers
    signed_in = getattr(request.state, "signed_in", None)
    return rendering.respond(
        request,
        "_error.html" if is_part else "error.html",
        status=status,
        headers=headers,
        title=_TITLES.get(status, "This did not work" if status < 500 else "Something failed"),
        again=_again(request, status),
        is_get=request.method == "GET",
        error=body,
        signed_in=signed_in,
        visit=None,
        calls=(),
        page_keys=(),
        origin="",
    )


def _again(request: Request, status: int) -> str:
    """Return the address that "Try again" opens. If a form was sent, return the address of the page
    with the form. If the page would fail again, return an empty text."""
    if request.method != "GET":
        return security.referring_page(request)
    if status in (403, 404):
        return ""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


async def _as_of_the_api(request: Request, error: Exception) -> tuple[dict[str, Any], Response]:
    handlers = request.app.exception_handlers
    handler = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    if handler is None:
        response: Response = unhandled_error_response(request, error)
    else:
        response = await handler(request, error)
    body: dict[str, Any] = json.loads(bytes(response.body))["error"]
    return body, response
