"""Responses made from templates: Jinja2 with the portal's filters, headers and compression."""

from __future__ import annotations

import gzip
import time
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from tunesmith_server.services.sessions import SignedIn

from . import assets, cookies, navigation, security, text, view

_TEMPLATES = Path(__file__).parent / "templates"
_LEAST_COMPRESSED = 1024
"""Minimum size in bytes of a page that is compressed."""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=text.finalize,
        auto_reload=False,
    )
    environment.filters |= {
        "number": view.number,
        "count": view.count,
        "duration": view.duration,
        "rough": view.rough,
        "ago": view.ago,
        "soon": view.soon,
        "moment": view.moment,
        "size": view.size,
        "percent": view.percent,
        "spark": view.sparkline,
        "words": view.words,
        "clip": text.clipped,
        "sentence": text.sentence,
        "browser": view.browser,
    }
    environment.globals |= {"static": assets.url, "state_of": view.state_of, "now": time.time}
    environment.globals |= {"is_current": navigation.is_current, "new_job": navigation.NEW_JOB}
    return environment


def render(name: str, **context: Any) -> str:  # Any: what the template names
    return _environment().get_template(name).render(**context)


def respond(
    request: Request,
    name: str,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    signed_in: SignedIn | None = None,
    **context: Any,  # Any: what the template names
) -> Response:
    """Render a template as the response to a request."""
    paths = request.app.state.portal_paths
    shown = {
        "theme": cookies.theme_of(request),
        "path": request.url.path,
        "signed_in": signed_in,
        "is_display": signed_in is not None and signed_in.kind == "display",
        "navigation": navigation.entries(paths),
        "has_page": navigation.offered(paths, signed_in).__contains__,
        **context,
    }
    return html(request, render(name, **shown), status=status, headers=headers)


def html(
    request: Request, page: str, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return compressed(request, page.encode(), "text/html; charset=utf-8", status, headers)


def compressed(
    request: Request,
    content: bytes,
    media_type: str,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the content as a response. Long content is compressed if the browser accepts gzip."""
    all_headers = {**security.HEADERS, "vary": "cookie, accept-encoding", **(headers or {})}
    if len(content) >= _LEAST_COMPRESSED and assets.accepts_gzip(request):
        content = gzip.compress(content, 5, mtime=0)
        all_headers["content-encoding"] = "gzip"
    return Response(content, status_code=status, headers=all_headers, media_type=media_type)
