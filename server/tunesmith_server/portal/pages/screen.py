"""Office screen: the team's jobs in large type, without controls and without secrets."""

from __future__ import annotations

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_schema import JobState
from tunesmith_server.portal import devices
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.training import jobs
from tunesmith_server.services.training.job_filters import JobFilters

from .jobs import line_of

_MOST_WAITING = 5
_MOST_RESULTS = 4
_ENDED = [JobState.SUCCEEDED, JobState.FAILED]


def show(visit: Visit) -> Response:
    page = jobs.list_jobs(
        visit.session, after=None, limit=_MOST_RESULTS, order="desc",
        filters=JobFilters(states=_ENDED),
    )  # fmt: skip
    return visit.show(
        "screen.html",
        devices=devices.read(visit, waiting=_MOST_WAITING),
        results=[line_of(item) for item in from_json(page.content())["data"]],
    )


PAGES = [Page(path="/portal/screen", show=show, needs=(*devices.NEEDS, "GET /fine_tuning/jobs"))]
