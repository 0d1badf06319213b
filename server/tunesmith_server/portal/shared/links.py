"""Page with the links that show a job without a sign-in: make, copy and revoke a link."""

from __future__ import annotations

from pydantic import ValidationError
from starlette.responses import Response

from tunesmith_schema import JobLinkCreate
from tunesmith_schema.job_links import DAY_SECONDS
from tunesmith_server.identity import job_links
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services import keys
from tunesmith_server.services.training import jobs

_HERE = "/portal/jobs/{job_id}/links"
_ROUTE = "/fine_tuning/jobs/{job_id}/links"
DAYS = (1, 7, 30, 90, 365)
DEFAULT_DAYS = 30


def show(visit: Visit) -> Response:
    return _page(visit)


def _page(visit: Visit, *, link: str = "", problem: str = "", status: int = 200) -> Response:
    job_id = visit.param("job_id")
    job = jobs.to_wire(jobs.retrieve(visit.session, job_id))
    links = job_links.list_links(visit.session, job_id).data
    is_display = visit.signed_in is not None and visit.signed_in.kind == "display"
    return visit.show(
        "job/links.html",
        status=status,
        job=job,
        job_name=job.name or job.suffix or job.id.partition("-")[2][:10],
        links=[(item, keys.name_of(visit.session, item.key_id)) for item in links],
        may_write="write" in visit.principal.verbs and not is_display,
        days=DAYS,
        default_days=DEFAULT_DAYS,
        link=link,
        problem=problem,
        calls=[
            Call(
                path=f"/v1/fine_tuning/jobs/{job_id}/links",
                sdk=f"client.jobs.links.list({job_id!r})",
                cli=f"tunesmith jobs links {job_id}",
            )
        ],
    )


def create(visit: Visit) -> Response:
    """Create a link and show it. The link is shown only once."""
    days = visit.field("days")
    try:
        seconds = int(days) * DAY_SECONDS if days.isascii() and len(days) < 5 else 0
        body = JobLinkCreate(expires_in_seconds=seconds)
    except (ValueError, ValidationError):
        return _page(visit, problem="Choose a number of days from 1 to 365.", status=400)
    made = job_links.create(visit.session, visit.principal, visit.param("job_id"), body)
    return _page(visit, link=str(visit.request.base_url).rstrip("/") + made.path)


def revoke(visit: Visit) -> Response:
    job_id = visit.param("job_id")
    job_links.revoke(visit.session, job_id, visit.param("link_id"))
    return visit.go(_HERE.format(job_id=job_id))


PAGES = [
    Page(path=_HERE, show=show, needs=(f"GET {_ROUTE}",)),
    Page(path=_HERE, method="POST", show=create, needs=(f"POST {_ROUTE}",)),
    Page(
        path=f"{_HERE}/{{link_id}}/revoke",
        method="POST",
        show=revoke,
        needs=(f"DELETE {_ROUTE}/{{link_id}}",),
    ),
]
