"""The theme: light, dark, or the theme of the system. A cookie stores the theme, so that no page
first appears in the wrong theme."""

from __future__ import annotations

from starlette.responses import Response

from tunesmith_server.portal import cookies, security
from tunesmith_server.portal.visit import Page, Visit


def choose(visit: Visit) -> Response:
    response = visit.go(security.referring_page(visit.request))
    cookies.set_theme(visit.request, response, visit.field("theme"))
    return response


PAGES = [Page(path="/portal/theme", method="POST", show=choose, is_public=True)]
