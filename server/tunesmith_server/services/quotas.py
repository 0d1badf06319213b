"""Quotas of stored bytes: a project that has used up its quota stores nothing new and starts no
job. Results of running jobs are always stored, because a refusal would lose the training."""

from __future__ import annotations

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, UploadStatus
from tunesmith_server.core.errors import QuotaExceeded
from tunesmith_server.models import (
    AdapterRow,
    FileRow,
    JobRow,
    ProjectRow,
    ResumePointRow,
    SamplesRow,
    UploadRow,
)
from tunesmith_server.models.scope import all_projects, limits_of


def check(session: Session, added: int, *, lock: bool = True) -> None:
    """Raise QuotaExceeded if the session's project cannot store `added` more bytes.

    With `lock`, the project's row is locked until the transaction ends, so that concurrent requests
    cannot exceed the quota together. A read-only session must set `lock` to False, because it
    cannot lock rows."""
    limits = limits_of(session)
    if limits is None or limits.max_bytes is None:
        return
    project = session.get_one(ProjectRow, limits.project_id, with_for_update=lock or None)
    used = stored_bytes(session, project.id)
    if project.max_bytes is not None and used + max(1, added) > project.max_bytes:
        raise QuotaExceeded(
            ErrorCode.QUOTA_EXCEEDED,
            f"project {project.name!r} stores {used:,} of {project.max_bytes:,} bytes, and this "
            f"request needs {added:,} more",
            hint="delete files, models or jobs of the project, or ask an admin for a larger quota",
        )


def stored_bytes(session: Session, project_id: str) -> int:
    """Return the bytes of a project's files, open uploads, models, resume points and samples. If
    two files have the same content, the content counts twice."""
    total = 0
    for row in (FileRow, AdapterRow):
        total += _sum(session, select(func.sum(row.bytes)).where(row.project_id == project_id))
    is_open = (UploadRow.project_id == project_id, UploadRow.status == UploadStatus.PENDING)
    total += _sum(session, select(func.sum(UploadRow.bytes)).where(*is_open))
    for output in (ResumePointRow, SamplesRow):
        of_jobs = select(func.sum(output.bytes)).join(JobRow, JobRow.id == output.job_id)
        total += _sum(session, of_jobs.where(JobRow.project_id == project_id))
    return total


def _sum(session: Session, query: Select[int]) -> int:
    return int(session.scalar(all_projects(query)) or 0)
