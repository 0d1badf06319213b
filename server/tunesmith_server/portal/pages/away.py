"""Changes of jobs while nobody watched the home page: "while you were away".

A cookie stores the time of the browser's last visit of the home page. While the page shows what
changed during an absence, the cookie also stores the start of this absence. The cookie remains
after a sign-out or the end of the session. Therefore, the page can show on Monday what changed
during the weekend. A visitor who hides the page counts as absent, because a hidden page sends no
requests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from starlette.responses import Response

from tunesmith_schema import JobState
from tunesmith_server.portal import cookies, security
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.training import events, jobs
from tunesmith_server.services.training.job_filters import JobFilters

from .jobs import JobLine, line_of

NEEDS = ("GET /fine_tuning/jobs", "GET /fine_tuning/jobs/{job_id}/events")
LEAST_SECONDS = 15 * 60.0
"""Minimum length of an absence."""
_LONGEST_SECONDS = 7 * 86_400.0
"""Maximum length of an absence; older changes are not shown."""
_MOST = 8
_GOING = [JobState.QUEUED, JobState.RUNNING, JobState.PAUSING, JobState.PAUSED]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A job that ended, failed or warned."""

    line: JobLine
    at: float | None
    """Time of the end, or of the newest warning."""
    text: str
    """Reason of a failure, or the newest warning; empty for a job that ended well."""


@dataclass(frozen=True, kw_only=True)
class Away:
    """Changes during one absence."""

    since: float
    changes: list[Change]
    has_more: bool
    """True if more jobs changed than the page shows."""
    summary: str


def since(visit: Visit, now: float) -> float | None:
    """Return the start of the absence (the page shows the changes since then); None without an
    absence."""
    seen, away = cookies.home_visit(visit.request)
    start = seen if seen and now - seen > LEAST_SECONDS else away
    return max(start, now - _LONGEST_SECONDS) if start else None


def read(visit: Visit, since: float) -> Away:
    """Read the jobs that ended, failed or warned since the Unix time `since`."""
    first = int(since)
    ended = {"failed": [JobState.FAILED], "ended": [JobState.SUCCEEDED, JobState.CANCELLED]}
    pages = {
        verb: _jobs(visit, JobFilters(states=states, finished_after=first))
        for verb, states in ended.items()
    } | {"warned": _jobs(visit, JobFilters(states=_GOING, warned_after=first))}
    counts = [
        f"{'at least ' if has_more else ''}{len(items)} {verb}"
        for verb, (items, has_more) in pages.items()
        if items
    ]
    return Away(
        since=since,
        changes=[
            *(_end(item) for item in pages["failed"][0]),
            *(_warning(visit, item) for item in pages["warned"][0]),
            *(_end(item) for item in pages["ended"][0]),
        ],
        has_more=any(has_more for _, has_more in pages.values()),
        summary=", ".join(counts),
    )


def _end(item: Mapping[str, Any]) -> Change:  # Any: JSON
    return Change(line=line_of(item), at=item["finished_at"], text=failure_of(item))


def _jobs(visit: Visit, filters: JobFilters) -> tuple[list[Any], bool]:  # Any: JSON
    page = jobs.list_jobs(visit.session, after=None, limit=_MOST, order="desc", filters=filters)
    document = from_json(page.content())
    return document["data"], document["has_more"]


def failure_of(item: Mapping[str, Any]) -> str:  # Any: JSON
    """Return the reason of a failed job; empty for a job in another state."""
    if item["state"] != JobState.FAILED:
        return ""
    error = item.get("error") or {}
    return error.get("message") or "It failed and gave no reason."


def _warning(visit: Visit, item: Mapping[str, Any]) -> Change:  # Any: JSON
    page = events.list_events(
        visit.session, item["id"], after=None, limit=1, order="desc", levels=["warn", "error"]
    )
    newest = from_json(page.content())["data"]
    return Change(
        line=line_of(item),
        at=newest[0]["created_at"] if newest else None,
        text=newest[0]["message"] if newest else "",
    )


def calls(since: float) -> list[Call]:
    """Return the API calls that list the jobs that ended or warned after the time `since`."""
    return [
        Call(
            path=f"/v1/fine_tuning/jobs?{name}_after={int(since)}",
            sdk=f"client.jobs.list({name}_after={int(since)})",
            cli=f"tunesmith jobs list --{name}-since {_hours(since)}h",
        )
        for name in ("finished", "warned")
    ]


def _hours(since: float) -> int:
    return int((time.time() - since) // 3600) + 1


def end(visit: Visit) -> Response:
    """Stop showing what happened while the visitor was away."""
    response = visit.go(security.HOME)
    cookies.set_home_visit(visit.request, response, time.time(), 0)
    return response


PAGES = [Page(path="/portal/back", method="POST", show=end, is_public=True)]
