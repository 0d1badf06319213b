"""Routes under /v1/fine_tuning/jobs/{job_id}/links: links that show the job without a sign-in."""

from __future__ import annotations

from fastapi import APIRouter

from tunesmith_schema import Deleted, JobLink, JobLinkCreate, JobLinkCreated, Page
from tunesmith_server.identity import job_links

from .bounds import IdPath
from .deps import KeyRoute, PrincipalDep, ReaderDep, SessionDep

router = APIRouter(
    prefix="/fine_tuning/jobs/{job_id}/links", tags=["fine-tuning"], route_class=KeyRoute
)


@router.get("")
def list_links(session: ReaderDep, job_id: IdPath) -> Page[JobLink]:
    """List the links that show a job and have not expired, newest first."""
    return job_links.list_links(session, job_id)


@router.post("")
def create(
    principal: PrincipalDep,
    session: SessionDep,
    job_id: IdPath,
    body: JobLinkCreate | None = None,
) -> JobLinkCreated:
    """Create a link to a page about a job. Everyone who has the link sees the job's name, its
    state, its last loss or reward, and a small curve. Only this response has `path`, the address of
    the page."""
    return job_links.create(session, principal, job_id, body or JobLinkCreate())


@router.delete("/{link_id}")
def revoke(session: SessionDep, job_id: IdPath, link_id: IdPath) -> Deleted:
    """Revoke a link immediately."""
    return job_links.revoke(session, job_id, link_id)
