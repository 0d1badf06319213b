"""Page of a link that shows a job without a sign-in. Chat programs read the Open Graph data of the
page, and show name, state, last value and a picture of the curve instead of the address."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import NotFound
from tunesmith_server.identity import job_links
from tunesmith_server.portal import rendering, security, view
from tunesmith_server.portal.visit import Page, Visit

from . import picture

_PATH = "/portal/shared/{job_id}"
_PER_MINUTE = 300
"""Maximum requests per minute of one client address to the page and to the picture."""
NOT_INDEXED = {"x-robots-tag": "noindex, nofollow"}


def show(visit: Visit) -> Response:
    job = _job(visit)
    metric = "reward" if job.is_reinforcement else "loss"
    address = f"/portal/shared/{job.id}/curve.png?{urlencode({'link': visit.query('link')})}"
    origin = str(visit.request.base_url).rstrip("/")
    words = [view.state_of(job.state).label]
    if job.last is not None:
        words.append(f"last {metric} {view.number(job.last)}")
    return rendering.respond(
        visit.request,
        "shared.html",
        headers=NOT_INDEXED,
        job=job,
        metric=metric,
        picture=address if job.curve else "",
        origin=origin,
        size=(picture.WIDTH, picture.HEIGHT),
        described=", ".join(words),
    )


def draw(visit: Visit) -> Response:
    """Send the picture of the curve."""
    job = _job(visit)
    if not job.curve:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            "this job has no curve yet",
            hint="a job has a curve after its first metrics",
        )
    headers = {**security.HEADERS, **NOT_INDEXED}
    return Response(picture.curve(job.curve), media_type="image/png", headers=headers)


def _job(visit: Visit) -> job_links.SharedJob:
    return job_links.find(visit.session, visit.param("job_id"), visit.query("link"))


PAGES = [
    Page(path=_PATH, show=show, is_public=True, per_minute=_PER_MINUTE),
    Page(path=f"{_PATH}/curve.png", show=draw, is_public=True, per_minute=_PER_MINUTE),
]
