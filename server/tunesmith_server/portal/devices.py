"""Devices and the queue for pages: each device with its running job, and the first waiting jobs
with the reasons for the wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunesmith_schema import Queue, QueuedJob, WorkerState, WorkerStatus
from tunesmith_server.api.queue import visible_to
from tunesmith_server.models import JobRow
from tunesmith_server.scheduling import overview
from tunesmith_server.services import keys
from tunesmith_server.services.training import jobs

from .calls import Call
from .visit import Visit

NEEDS = ("GET /workers", "GET /queue")
"""API routes that a caller must be allowed to use, to see the devices and the queue."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A running or waiting job, with its name and its owner."""

    job: QueuedJob
    name: str = ""
    """Name of the job; empty if it has none, or if it is a job of another project."""
    owner: str | None = None
    """Name of the owner's key; None for a job of another project."""

    @property
    def title(self) -> str:
        """Return the job's name, or the start of its id if it has no name. For a job of another
        project, return a text that names only the project."""
        if self.job.id is None:
            return f"A job of {self.job.project}"
        return self.name or self.job.id.partition("-")[2][:8]

    @property
    def share(self) -> float | None:
        """Return the share of completed steps, from 0 to 1."""
        job = self.job
        return job.step / job.total_steps if job.total_steps and job.step is not None else None


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A worker, which is one device, with its running job."""

    worker: WorkerStatus
    work: Work | None


@dataclass(frozen=True, kw_only=True)
class Devices:
    """All devices and the first waiting jobs."""

    lanes: list[Lane]
    waiting: list[Work]
    num_waiting: int
    """Number of all waiting jobs."""
    live: int
    """Number of devices whose workers report."""
    free: int
    """Number of devices that are ready and have no job."""

    @property
    def hidden(self) -> int:
        """Return the number of waiting jobs that are not in `waiting`."""
        return self.num_waiting - len(self.waiting)


def read(visit: Visit, *, waiting: int) -> Devices:
    """Return the devices and the first waiting jobs; `waiting` is the maximum number of these
    jobs."""
    view, sees = visit.state.queue_view.get(), visible_to(visit.principal)
    queue: Queue = overview.queue(view, sees, waiting)
    workers = overview.workers(visit.session, view, sees)
    # An admin sees ids of other projects' jobs, but not the rows.
    rows = jobs.find(visit.session, [job.id for job in (*queue.running, *queue.waiting) if job.id])
    running = {job.worker: _work(visit, job, rows) for job in queue.running}
    lanes = [Lane(worker=worker, work=running.get(worker.id)) for worker in workers]
    return Devices(
        lanes=lanes,
        waiting=[_work(visit, job, rows) for job in queue.waiting],
        num_waiting=queue.num_waiting,
        live=sum(lane.worker.state != WorkerState.GONE for lane in lanes),
        free=queue.free_devices,
    )


def _work(visit: Visit, job: QueuedJob, rows: Mapping[str, JobRow]) -> Work:
    row = rows.get(job.id or "")
    if row is None:
        return Work(job=job)
    name = (row.name or row.suffix or "").strip()
    return Work(job=job, name=name, owner=keys.name_of(visit.session, row.owner))


def calls() -> list[Call]:
    """Return the API calls that give the same data as `read`."""
    return [
        Call(path="/v1/workers", sdk="client.workers.list()", cli="tunesmith worker list"),
        Call(path="/v1/queue", sdk="client.queue.retrieve()", cli="tunesmith top"),
    ]
