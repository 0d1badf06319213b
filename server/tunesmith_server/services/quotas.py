"""Quotas of stored bytes: a project that has used up its quota stores nothing new and starts no
job. Results of running jobs are always stored, because a refusal would lose the training."""

from __future__ import annotations

from sqlalchemy import Select, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

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
    for query in sums().values():
        of_project = query.where(query.selected_columns[0] == project_id)
        found = session.execute(all_projects(of_project)).first()
        total += int(found[1]) if found else 0
    return total


def sums() -> dict[str, Select[str, int]]:
    """Return a database query for each kind of stored bytes. The query gives one row per project:
    the project's id and its sum of bytes."""
    is_open = UploadRow.status == UploadStatus.PENDING
    return {
        "files": _summed(FileRow.bytes, FileRow.project_id),
        "uploads": _summed(UploadRow.bytes, UploadRow.project_id).where(is_open),
        "models": _summed(AdapterRow.bytes, AdapterRow.project_id),
        "resume_points": _summed(ResumePointRow.bytes, JobRow.project_id).where(
            JobRow.id == ResumePointRow.job_id
        ),
        "samples": _summed(SamplesRow.bytes, JobRow.project_id).where(
            JobRow.id == SamplesRow.job_id
        ),
    }


def _summed(
    size: InstrumentedAttribute[int], project_id: InstrumentedAttribute[str]
) -> Select[str, int]:
    return select(project_id, func.sum(size)).group_by(project_id)
