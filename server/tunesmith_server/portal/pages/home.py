"""First page: the state of the service, and the jobs that need attention."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_schema import HealthState, JobState
from tunesmith_server.identity import me
from tunesmith_server.portal import cookies, devices
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.training import jobs
from tunesmith_server.services.training.job_filters import JobFilters

from . import away
from .jobs import JobLine, line_of

_WEEK = 7 * 86_400
_MOST = 8
_WARNS = (
    HealthState.DIVERGED,
    HealthState.OVERFITTING,
    HealthState.BARELY_MOVED,
    HealthState.NO_REWARD_SPREAD,
)
"""Health states of jobs that need attention."""


@dataclass(frozen=True, kw_only=True)
class Concern:
    """A job that needs attention, and the reason."""

    line: JobLine
    text: str


def show(visit: Visit) -> Response:
    name = me.describe(visit.session, visit.principal).name
    running = _jobs(visit, JobState.RUNNING, JobState.PAUSING, with_curve=True)
    failed = _jobs(visit, JobState.FAILED, since=time.time() - _WEEK)
    paused = _jobs(visit, JobState.PAUSED)
    finished = _jobs(visit, JobState.SUCCEEDED, since=time.time() - _WEEK)
    lines = sorted(map(line_of, running), key=lambda line: line.owner != name)
    seen = devices.read(visit, waiting=_MOST)
    is_new = not (lines or jobs_exist(visit))
    now = time.time()
    since = away.since(visit, now)
    response = visit.show(
        "home.html",
        running=lines,
        concerns=_concerns(running, failed, paused),
        finished=[line_of(item) for item in finished],
        devices=seen,
        page_keys=(("j k", "Next or previous job"), ("o", "Open the job")),
        is_new=is_new,
        away=away.read(visit, since) if since else None,
        may_write="write" in visit.principal.verbs,
        calls=[
            Call(
                path="/v1/fine_tuning/jobs?state=running",
                sdk="client.jobs.list(state=['running'])",
                cli="tunesmith jobs list --state running",
            ),
            *devices.calls(),
            *(away.calls(since) if since else []),
        ],
    )
    cookies.set_home_visit(visit.request, response, now, since or 0)
    return response


def jobs_exist(visit: Visit) -> bool:
    page = jobs.list_jobs(
        visit.session, after=None, limit=1, order="desc", filters=JobFilters()
    )  # fmt: skip
    return bool(from_json(page.content())["data"])


def _jobs(
    visit: Visit, *states: JobState, since: float | None = None, with_curve: bool = False
) -> list[Any]:  # Any: JSON
    """Return the newest jobs that have one of the given states and ended since the given time."""
    finished_after = None if since is None else int(since)
    page = jobs.list_jobs(
        visit.session, after=None, limit=_MOST, order="desc",
        filters=JobFilters(states=list(states), finished_after=finished_after),
        with_curve=with_curve,
    )  # fmt: skip
    found: list[Any] = from_json(page.content())["data"]
    return found


def _concerns(
    running: list[Any], failed: list[Any], paused: list[Any]  # Any: JSON
) -> list[Concern]:  # fmt: skip
    concerns = [
        Concern(line=line_of(item), text=health["text"])
        for item in running
        if (health := item.get("health")) and health["state"] in _WARNS
    ]
    concerns += [Concern(line=line_of(item), text=away.failure_of(item)) for item in failed]
    return concerns + [
        Concern(line=line_of(item), text="It waits until it is resumed.") for item in paused
    ]


PAGES = [
    Page(path="/portal", show=show, needs=("GET /me", *away.NEEDS, *devices.NEEDS)),
]
