"""Links that show a job without a sign-in: create, list, revoke, and find the job of a link.

A link contains 256 random bits, and the database has only their hash. A copy of the database is
therefore not enough to open a link. Each link is for one job, and has an expiry time. A link shows
the job's name and state, its last loss or reward, and a small curve of the loss or reward.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    Deleted,
    ErrorCode,
    JobCurve,
    JobLink,
    JobLinkCreate,
    JobLinkCreated,
    Page,
)
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, NotFound
from tunesmith_server.core.principal import Principal
from tunesmith_server.core.security import key_hash
from tunesmith_server.models import JobLinkRow, JobRow
from tunesmith_server.models.scope import all_projects
from tunesmith_server.services import keys
from tunesmith_server.services.training import jobs

MAX_LINKS = 50
"""Maximum number of links of a job that have not expired."""


@dataclass(frozen=True, kw_only=True)
class SharedJob:
    """Part of a job that a link shows."""

    id: str
    name: str
    """Name, suffix or short id of the job."""
    state: str
    is_reinforcement: bool
    last: float | None
    """Last training loss, or last reward of a reinforcement job."""
    curve: tuple[float, ...]
    """Values of the small curve of the loss or reward; empty before the first metrics."""
    expires_at: float


def create(
    session: Session, principal: Principal, job_id: str, body: JobLinkCreate
) -> JobLinkCreated:
    """Create a link. Only this call returns the path of the link."""
    jobs.lock(session, job_id)
    now, secret = time.time(), secrets.token_urlsafe(32)
    count = select(func.count()).select_from(JobLinkRow).where(*_current(job_id, now))
    if (session.scalar(count) or 0) >= MAX_LINKS:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"job {job_id!r} has {MAX_LINKS} links, the maximum number",
            hint=f"DELETE /v1/fine_tuning/jobs/{job_id}/links/LINK revokes a link",
        )
    row = JobLinkRow(
        id=new_id("link"),
        job_id=job_id,
        sha256=key_hash(secret),
        key_id=principal.key_id,
        created_at=now,
        expires_at=now + body.expires_in_seconds,
    )
    session.add(row)
    session.flush()
    path = f"/portal/shared/{job_id}?link={secret}"
    return JobLinkCreated(**_to_wire(row).model_dump(), path=path)


def list_links(session: Session, job_id: str) -> Page[JobLink]:
    """Return the links of a job that have not expired, newest first."""
    jobs.retrieve(session, job_id)
    query = select(JobLinkRow).where(*_current(job_id, time.time()))
    query = query.order_by(JobLinkRow.created_at.desc(), JobLinkRow.id)
    shown = [_to_wire(row) for row in session.scalars(query)]
    return Page(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=False,
    )


def revoke(session: Session, job_id: str, link_id: str) -> Deleted:
    """Revoke a link immediately."""
    jobs.retrieve(session, job_id)
    row = session.get(JobLinkRow, link_id)
    if row is None or row.job_id != job_id:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"job {job_id!r} has no link {link_id!r}",
            hint=f"GET /v1/fine_tuning/jobs/{job_id}/links lists the links",
        )
    session.delete(row)
    return Deleted(id=link_id, object="fine_tuning.job.link")


def find(session: Session, job_id: str, secret: str) -> SharedJob:
    """Return what a link shows. Raise the same error for a wrong, expired or revoked link, for a
    link of another job, and for a deleted job."""
    columns = (
        *(JobRow.id, JobRow.name, JobRow.suffix, JobRow.state, JobRow.method_name),
        *(JobRow.last_metrics, JobRow.curve),
    )
    query = (
        select(JobLinkRow.key_id, JobLinkRow.project_id, JobLinkRow.expires_at, *columns)
        .join(JobRow, JobRow.id == JobLinkRow.job_id)
        .where(JobLinkRow.sha256 == key_hash(secret), JobLinkRow.expires_at > time.time())
    )
    row = session.execute(all_projects(query)).one_or_none() if secret else None
    use = None if row is None else (row.key_id, row.project_id)
    if row is None or use is None or row.id != job_id or use not in keys.valid(session, {use}):
        raise NotFound(
            ErrorCode.NOT_FOUND,
            "this link is not valid, was revoked or has expired",
            hint="ask the person who sent the link for a new one",
        )
    is_reinforcement = row.method_name == "reinforcement"
    return SharedJob(
        id=row.id,
        name=row.name or row.suffix or row.id.partition("-")[2][:10],
        state=row.state,
        is_reinforcement=is_reinforcement,
        last=_last(row.last_metrics, "reward" if is_reinforcement else "train_loss"),
        curve=_values(row.curve),
        expires_at=row.expires_at,
    )


def delete_expired(session: Session) -> None:
    session.execute(delete(JobLinkRow).where(JobLinkRow.expires_at < time.time()))


def _current(job_id: str, now: float) -> tuple[Any, ...]:  # Any: SQL conditions
    return JobLinkRow.job_id == job_id, JobLinkRow.expires_at > now


def _last(stored: Any, metric: str) -> float | None:  # Any: JSON
    value = stored.get(metric) if isinstance(stored, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _values(stored: Any) -> tuple[float, ...]:  # Any: JSON
    try:
        return tuple(JobCurve.model_validate(stored).values) if stored else ()
    except ValueError:  # a row of another release
        return ()


def _to_wire(row: JobLinkRow) -> JobLink:
    return JobLink(
        id=row.id,
        job_id=row.job_id,
        key_id=row.key_id,
        created_at=int(row.created_at),
        expires_at=int(row.expires_at),
    )
