"""Changes of a job's name, notes, pin and metadata. The training does not use name, notes, pin and
metadata."""

from __future__ import annotations

from sqlalchemy.orm import Session

from tunesmith_schema import JobPatch
from tunesmith_server.models import JobRow

from . import jobs


def edit(session: Session, job_id: str, body: JobPatch) -> JobRow:
    """Change the fields that are in the body; other fields keep their values."""
    job = jobs.lock(session, job_id)
    given = body.model_fields_set
    for field in ("name", "notes", "pinned"):
        if field in given:
            setattr(job, field, getattr(body, field))
    if "metadata" in given:
        job.labels = body.metadata
    session.flush()
    return job
