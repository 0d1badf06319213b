"""Page of the workers and the queue, which shows why jobs wait."""

from __future__ import annotations

from starlette.responses import Response

from tunesmith_server.portal import devices
from tunesmith_server.portal.visit import Page, Visit

_MOST_WAITING = 50


def show(visit: Visit) -> Response:
    return visit.show(
        "workers.html",
        devices=devices.read(visit, waiting=_MOST_WAITING),
        calls=devices.calls(),
        page_keys=(("j k", "Next or previous job"), ("o", "Open the job")),
    )


PAGES = [Page(path="/portal/workers", show=show, needs=devices.NEEDS)]
