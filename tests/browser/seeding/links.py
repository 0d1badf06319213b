"""Links that show jobs of a world without a sign-in."""

from __future__ import annotations

from sqlalchemy.orm import Session

from tunesmith_server.core.database import new_id
from tunesmith_server.core.security import key_hash
from tunesmith_server.models import JobLinkRow


def link(session: Session, job_id: str, owner: str, now: float) -> str:
    """Store a link of the API key `owner`, and return its path."""
    secret = f"link-of-{job_id}"
    row = JobLinkRow(
        id=new_id("link"), job_id=job_id, sha256=key_hash(secret), key_id=owner,
        created_at=now - 3600, expires_at=now + 1e6,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return f"/portal/shared/{job_id}?link={secret}"
