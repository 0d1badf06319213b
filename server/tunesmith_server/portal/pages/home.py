"""First page; it leads to the jobs until there is something to say here."""

from __future__ import annotations

from starlette.responses import Response

from tunesmith_server.portal.visit import Page, Visit


def show(visit: Visit) -> Response:
    return visit.go("/portal/jobs")


PAGES = [Page(path="/portal", show=show)]
