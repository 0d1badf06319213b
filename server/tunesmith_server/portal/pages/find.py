"""Jobs, models, files, actions and pages whose names contain a text, for the dialog that Ctrl K
opens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_schema import FileObject, FilePurpose
from tunesmith_server.portal import navigation
from tunesmith_server.portal.navigation import Entry
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.catalogue import model_list
from tunesmith_server.services.catalogue.model_list import ModelFilters
from tunesmith_server.services.data import files
from tunesmith_server.services.training import jobs
from tunesmith_server.services.training.job_filters import JobFilters

from .jobs import line_of

_MOST_JOBS = 8
_MOST_MODELS = 8
_MOST_FILES = 5
_MAX_TEXT = 200
_ON_JOB = re.compile(r"https?://[^/]+(/portal/jobs/ftjob-\w{1,64})(?:[/?#].*)?")
"""Pattern of the address of a job's page."""


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
    data = files.list_files(
        visit.session, after=None, limit=_MOST_FILES, order="desc",
        purpose=FilePurpose.FINE_TUNE, text=text or None,
    )  # fmt: skip
    return visit.show(
        "_found.html",
        text=text,
        actions=_named((*_of_job(visit), *navigation.actions(visit.principal.verbs)), text),
        pages=_named(navigation.entries(paths), text),
        files=[FileObject.model_validate(item) for item in from_json(data.content())["data"]],
        models=from_json(found.content())["data"],
        lines=[line_of(item) for item in from_json(page.content())["data"]],
    )


def _of_job(visit: Visit) -> list[Entry]:
    """Return the actions on the job whose page opened the dialog."""
    on = _ON_JOB.fullmatch(visit.request.headers.get("hx-current-url", ""))
    if on is None or "write" not in visit.principal.verbs:
        return []
    return [Entry(f"{on[1]}/edit", "Edit name, notes and pin of this job", "jobs", "")]


def _named(entries: Iterable[Entry], text: str) -> list[Entry]:
    return [entry for entry in entries if text.casefold() in entry.name.casefold()]


_NEEDS = ("GET /fine_tuning/jobs", "GET /models", "GET /files")
PAGES = [Page(path="/portal/find", show=show, needs=_NEEDS)]
