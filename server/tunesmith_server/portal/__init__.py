"""The portal: a web interface at `/portal`, served by the API's process.

The server renders the pages with the service functions that the `/v1` routes use too. A page that
needs other functions needs a new route in the API first. The library htmx replaces parts of a page,
uPlot draws curves, and small ES modules do the rest. Pages have no inline script or style, no
`style=`, and no address of another host.

To add a page:

1. Write `pages/NAME.py`: a function that takes a `Visit` and returns a response. The function reads
   the query, calls service functions, puts the result into a frozen dataclass and calls
   `visit.show`. At the end of the module, `PAGES` lists the page's addresses. It also lists API
   routes for each address; only visitors who may use these routes see the page.
2. Write `templates/NAME.html`, which extends `base.html`; parts that htmx replaces are templates
   with a leading underscore. Print numbers and times with the filters of `view.py`. `{% set modules
   = ["one"] %}`, outside all blocks, loads `static/one.js`; `base.html` loads what all pages need.
3. Add the module to `_MODULES` in `pages/__init__.py`. A top-level page appears in the navigation
   as soon as its path exists (`navigation.py`).
4. Write `tests/server/portal/test_NAME.py`; `page_checks.py` has the checks that each page passes.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import NotFound

from . import assets, live, pages, routing, security
from .playground import answers
from .security import DefaultHeaders
from .visit import Page, Visit

__all__ = ["DefaultHeaders", "install"]


def install(app: FastAPI) -> None:
    """Add the portal to the app. The app must already have its error handlers. `GET /` redirects to
    the portal."""
    app.state.portal_paths = frozenset(page.path for page in pages.all_pages())
    app.state.portal_failed_sign_ins = security.FailedSignIns()
    app.state.portal_rows = live.Rows()
    routes = [routing.route_of(page) for page in pages.all_pages()]
    app.router.routes.extend(
        [
            Route("/", _to_portal, methods=["GET"]),
            assets.route,
            live.route,
            answers.route,
            *routes,
            routing.route_of(Page(path="/portal/{path:path}", show=_nothing_here)),
        ]
    )


async def _to_portal(request: Request) -> Response:
    return RedirectResponse(security.HOME, 307, security.HEADERS)


def _nothing_here(visit: Visit) -> Response:
    """Show that the page does not exist. If the address ends with a slash, redirect to the address
    without the slash."""
    path = visit.request.url.path
    if path.endswith("/"):
        return visit.go(security.own_path(path.rstrip("/")))
    raise NotFound(
        ErrorCode.NOT_FOUND,
        f"no page {path}",
        hint="the navigation lists the pages; a job or a file may have been deleted",
    )
