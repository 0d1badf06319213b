"""`client.queue`, `client.workers`, `client.reservations` and `client.usage`: running and waiting
jobs, workers, reservations of workers, and used device-time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith_schema import (
    DeviceUsage,
    KeyLimits,
    ProjectShare,
    Reservation,
    ReservationDeleted,
    WorkerStatus,
)

Group = Literal["project", "user", "model", "day"]


class Queue:
    """Running and waiting jobs, and the projects' shares of the devices."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def retrieve(self, *, limit: int | None = None) -> wire.Queue:
        """Return the running jobs and the first `limit` waiting jobs (default: 100)."""
        return self._http.get(wire.Queue, "queue", {"limit": limit})

    def projects(self) -> list[ProjectShare]:
        """Return the weight, guaranteed devices, limits and recent usage of the projects that you
        may see."""
        return self._http.get(wire.Page[ProjectShare], "queue/projects").data

    def update_project(self, project_id: str, **changes: Any) -> ProjectShare:  # Any: JSON
        """Change `weight`, `guaranteed_devices`, `max_running_jobs`, `max_queued_jobs` or
        `max_device_hours` of a project."""
        return self._http.post(ProjectShare, path_of("queue", "projects", project_id), json=changes)

    def update_key(self, key_id: str, **changes: Any) -> KeyLimits:  # Any: JSON
        """Change `max_running_jobs`, `max_queued_jobs` or `max_device_hours` of a key."""
        return self._http.post(KeyLimits, path_of("queue", "keys", key_id), json=changes)


class Workers:
    """Training workers, each with one device."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> list[WorkerStatus]:
        return self._http.get(wire.Page[WorkerStatus], "workers").data

    def drain(self, name: str, *, reason: str = "") -> Reservation:
        """Drain a worker, or all workers of a host: running jobs save a resume point and are queued
        again, and no job starts there."""
        return self._http.post(
            Reservation, path_of("workers", name, "drain"), json={"reason": reason}
        )

    def undrain(self, name: str) -> Sequence[Reservation]:
        """Let a drained worker or host take jobs again; return the drains that were ended."""
        return self._http.delete(wire.Page[Reservation], path_of("workers", name, "drain")).data


class Reservations:
    """Times in which a worker or host takes no jobs, or only jobs of one project."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> list[Reservation]:
        """Return the active and the future reservations."""
        return self._http.get(wire.Page[Reservation], "reservations").data

    def create(
        self,
        *,
        worker: str,
        starts_at: int,
        ends_at: int | None = None,
        project_id: str | None = None,
        reason: str = "",
    ) -> Reservation:
        """Reserve a worker or host from `starts_at` to `ends_at`, Unix seconds. Without
        `project_id`, no job can run during this time."""
        body = {
            "worker": worker,
            "starts_at": starts_at,
            "ends_at": ends_at,
            "project_id": project_id,
            "reason": reason,
        }
        return self._http.post(Reservation, "reservations", json=body)

    def delete(self, reservation_id: str) -> ReservationDeleted:
        return self._http.delete(ReservationDeleted, path_of("reservations", reservation_id))


class Usage:
    """Device-time of projects."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def retrieve(
        self, *, days: int | None = None, group_by: Sequence[Group] | None = None
    ) -> DeviceUsage:
        """Return the device-seconds of the last `days` days (default: 30), grouped by the fields in
        `group_by` (default: project)."""
        groups = None if group_by is None else list(group_by)
        return self._http.get(DeviceUsage, "usage", {"days": days, "group_by": groups})
