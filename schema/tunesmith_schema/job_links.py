"""Links that show a job to everyone who has the link."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Request, Response

DAY_SECONDS = 86_400


class JobLink(Response):
    """A link that shows, without a sign-in, a job's name, its state, its last loss or reward, and a
    small curve. A link stops working when the API key that created it expires or is revoked."""

    id: str
    object: Literal["fine_tuning.job.link"] = "fine_tuning.job.link"
    job_id: str
    key_id: str
    """API key that created the link."""
    created_at: int
    expires_at: int
    """Time when the link stops working."""


class JobLinkCreate(Request):
    """Request to create a link that shows a job."""

    expires_in_seconds: Annotated[int, Field(ge=60, le=365 * DAY_SECONDS)] = 30 * DAY_SECONDS
    """Seconds until the link expires; at most a year."""


class JobLinkCreated(JobLink):
    """A new link with its path, which is shown only once."""

    path: str
    """Path of the link, below the server's address. The path contains the secret that signs the
    link."""
