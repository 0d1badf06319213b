"""Report of the stored bytes by kind and project, of the disk, and of the janitor's runs."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunesmith_schema import OrganizationStorage, ProjectStorage, StoredBytes
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import BlobRow, ProjectRow
from tunesmith_server.models.scope import all_projects

from . import janitor_runs, quotas

_MOST_PROJECTS = 100
_KINDS = ("files", "uploads", "models", "resume_points", "samples")


def report(session: Session, storage: Storage, settings: Settings) -> OrganizationStorage:
    """Return the report. Stored bytes are sums of database columns: no directory or bucket is
    listed."""
    found = _by_project(session)
    largest = sorted(found, key=lambda project_id: (-sum(found[project_id].values()), project_id))
    listed = largest[:_MOST_PROJECTS]
    rows = {
        row.id: row for row in session.scalars(select(ProjectRow).where(ProjectRow.id.in_(listed)))
    }
    disk = storage.disk()
    return OrganizationStorage(
        kind="directory" if storage.is_local else "bucket",
        free_bytes=disk.free if disk else None,
        disk_bytes=disk.total if disk else None,
        content_bytes=int(session.scalar(select(func.sum(BlobRow.bytes))) or 0),
        stored=_stored(
            {kind: sum(sizes.get(kind, 0) for sizes in found.values()) for kind in _KINDS}
        ),
        projects=[
            ProjectStorage(
                id=project_id,
                name=rows[project_id].name,
                max_bytes=rows[project_id].max_bytes,
                stored=_stored(found[project_id]),
            )
            for project_id in listed
            if project_id in rows
        ],
        janitor=janitor_runs.status(session, settings.janitor_seconds),
    )


def _by_project(session: Session) -> dict[str, dict[str, int]]:
    """Return the stored bytes of each kind, by project."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for kind, query in quotas.sums().items():
        for project_id, size in session.execute(all_projects(query)):
            found[project_id][kind] = int(size)
    return found


def _stored(sizes: dict[str, int]) -> StoredBytes:
    kinds = {kind: sizes.get(kind, 0) for kind in _KINDS}
    return StoredBytes(**kinds, total=sum(kinds.values()))
