"""Stored bytes and the janitor's last runs, in the format of `GET /v1/organization/storage`."""

from __future__ import annotations

from typing import Literal

from .base import Response


class StoredBytes(Response):
    """Stored bytes by kind. If two files have the same content, the content counts twice."""

    files: int
    """Uploaded files."""
    uploads: int
    """Announced sizes of open uploads."""
    models: int
    """Adapters and full weights, also of checkpoints."""
    resume_points: int
    """Resume points, from which jobs continue."""
    samples: int
    """Samples of reinforcement jobs."""
    total: int
    """Sum of the kinds."""


class ProjectStorage(Response):
    """Stored bytes of a project."""

    id: str
    name: str
    """Name of the project."""
    max_bytes: int | None
    """Quota; None means no quota."""
    stored: StoredBytes
    """Bytes of the project, by kind."""


class JanitorStatus(Response):
    """Last runs of the janitor, the server's periodic task, in any API process. Times are Unix
    seconds; a time is None if its event has not happened yet."""

    round_at: int | None
    """Start of the last round, which deletes expired database rows and the parts of closed uploads.
    The server stores this time at most once a minute."""
    round_seconds: float | None
    """Duration of this round."""
    every_seconds: float
    """Time between two rounds."""
    sweep_at: int | None
    """Start of the last sweep, which deletes the content that nothing uses."""
    sweep_seconds: float | None
    """Duration of this sweep."""
    next_sweep_at: int | None
    """Time by which the next sweep starts, if the API keeps running."""
    removed_at: int | None
    """Time when a round or a sweep last deleted stored objects."""
    removed_objects: int
    """Number of objects that this round or sweep deleted."""
    removed_bytes: int
    """Size of these objects."""
    error: str | None
    """Last error, without details; the API's log has the details."""
    error_at: int | None
    """Time of the last error."""


class OrganizationStorage(Response):
    """Stored bytes by kind and project, the store, and the runs of the janitor."""

    object: Literal["organization.storage"] = "organization.storage"
    kind: Literal["directory", "bucket"]
    """Kind of store: a local directory, or a bucket of an object store."""
    free_bytes: int | None
    """Free bytes of the directory's disk; None for a bucket, or if reading them fails."""
    disk_bytes: int | None
    """Size of the directory's disk; None for a bucket, or if reading it fails."""
    content_bytes: int
    """Bytes in the store, with each content counted once. Includes content that the next sweeps
    will delete."""
    stored: StoredBytes
    """Bytes of all projects."""
    projects: list[ProjectStorage]
    """The 100 projects that store the most, largest first."""
    janitor: JanitorStatus
    """Last runs of the janitor."""
