"""All routes of the portal: pages, and the routes that stream their responses."""

from __future__ import annotations

from starlette.responses import Response

from tunesmith_server.portal.pages import all_pages
from tunesmith_server.portal.playground import answers
from tunesmith_server.portal.visit import Page, Visit

OTHERS = {"GET /portal/live", "GET /portal/static/{digest}/{name:path}", "GET /portal/{path:path}"}
"""Routes of no page, which other tests cover: the live stream, static files, missing pages."""


def _streams(visit: Visit) -> Response:
    raise AssertionError("the route answers by itself")


STREAMS = [
    Page(path=answers.route.path, method="POST", needs=(answers.ROUTE,), show=_streams),
]
"""Routes that stream, as pages, for the tables of roles and of other sites."""


def registered() -> list[Page]:
    return [*all_pages(), *STREAMS]


def name_of(page: Page) -> str:
    return f"{page.method} {page.path}"
