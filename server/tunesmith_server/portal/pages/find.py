"""Jobs, models and pages whose names contain a text, for the dialog that Ctrl K opens."""

from __future__ import annotations

from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_server.portal import navigation
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.catalogue import model_list
from tunesmith_server.services.catalogue.model_list import ModelFilters
from tunesmith_server.services.training import jobs
from tunesmith_server.services.training.job_filters import JobFilters

from .jobs import line_of

_MOST_JOBS = 8
_MOST_MODELS = 8
_MAX_TEXT = 200


def show(visit: Visit) -> Response:
    """Show the results of the search as a part of a page. A browser without scripts gets the list
    of jobs."""
    text = visit.query("q").strip()[:_MAX_TEXT]
    if not visit.is_part:
        return visit.go(f"/portal/jobs?{urlencode({'q': text})}")
    paths = visit.request.app.state.portal_paths
    page = jobs.list_jobs(
        visit.session, after=None, limit=_MOST_JOBS, order="desc",
        filters=JobFilters(text=text or None),
    )  # fmt: skip
    found = model_list.list_models(
        visit.session, visit.state.settings, after=None, limit=_MOST_MODELS,
        filters=ModelFilters(text=text or None), serving=visit.state.inference.serving,
    )  # fmt: skip
    return visit.show(
        "_found.html",
        text=text,
        pages=[
            entry for entry in navigation.entries(paths) if text.casefold() in entry.name.casefold()
        ],
        models=from_json(found.content())["data"],
        lines=[line_of(item) for item in from_json(page.content())["data"]],
    )


PAGES = [Page(path="/portal/find", show=show, needs=("GET /fine_tuning/jobs", "GET /models"))]
