"""`client.fine_tuning.jobs.links`: links that show a job without a sign-in."""

from __future__ import annotations

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import Deleted, JobLink, JobLinkCreated


class JobLinks:
    """Links that show a job's name, state, last loss or reward, and small curve to everyone who has
    the link."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def create(self, job_id: str, *, expires_in_seconds: int | None = None) -> JobLinkCreated:
        """Create a link that expires after 30 days by default. Only this method returns the link's
        `path`."""
        body = {} if expires_in_seconds is None else {"expires_in_seconds": expires_in_seconds}
        return self._http.post(JobLinkCreated, _path(job_id), json=body)

    def list(self, job_id: str) -> Page[JobLink]:
        """List the links of a job that have not expired, newest first."""
        return first_page(lambda _: self._http.get(wire.Page[JobLink], _path(job_id)), None)

    def delete(self, link_id: str, *, job_id: str) -> Deleted:
        """Revoke a link immediately."""
        return self._http.delete(Deleted, f"{_path(job_id)}/{path_of(link_id)}")


def _path(job_id: str) -> str:
    return path_of("fine_tuning", "jobs", job_id, "links")
