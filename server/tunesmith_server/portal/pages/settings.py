"""Settings: who has access?"""

from __future__ import annotations

from starlette.responses import Response

from tunesmith_server.identity import me
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.visit import Page, Visit


def show(visit: Visit) -> Response:
    return visit.show(
        "settings.html",
        me=me.describe(visit.session, visit.principal),
        calls=[Call(path="/v1/me", sdk="client.me()", cli="tunesmith whoami")],
    )


PAGES = [Page(path="/portal/settings", show=show, needs=("GET /me",))]
