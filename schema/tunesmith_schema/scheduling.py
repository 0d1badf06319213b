"""Scheduling of jobs: a job's requirements, the reason why it waits, and its expected start."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .base import Request, Response, Text
from .bounds import MAX_COUNT, MAX_SECONDS, MAX_STEP, JsonBound, ObjectId, at_most

Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
WorkerLabels = Annotated[dict[Label, Label], at_most(16), JsonBound(4 * 1024)]
"""Labels of a worker, at most 16. Names and values of labels consist of letters, digits, dots,
hyphens and underscores."""


class Scheduling(Request):
    """Priority of a job, and the properties that its worker must have."""

    priority: int = Field(default=0, ge=-100, le=100)
    """Within a project, jobs with a higher priority are claimed earlier. A waiting job may pre-empt
    a running job that has a lower priority."""
    interactive: bool = False
    """True for an interactive job of a few minutes, which is claimed first and can pre-empt other
    jobs. Each key can run one interactive job at a time. After 10 minutes on a device, the job
    becomes an ordinary job.
    """
    worker_labels: WorkerLabels = Field(default_factory=dict)
    """Labels that the worker must have, for example `{"gpu": "h100"}`."""
    device_bytes: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Memory in bytes that the device must have. If an attempt predicts a higher peak memory, later
    attempts of the job require this higher value."""


class WaitingCode(StrEnum):
    """Stable codes of the reasons for which jobs wait."""

    VALIDATING_FILES = "validating_files"
    PAUSED = "paused"
    BACKING_OFF = "backing_off"
    """The job waits for the end of the delay after a failed attempt."""
    NO_WORKER = "no_worker"
    """No live worker accepts jobs."""
    NO_MODEL = "no_model"
    """No live worker has the base model."""
    NO_LABELS = "no_labels"
    """No live worker has the labels that the job asks for."""
    NO_MEMORY = "no_memory"
    """The job needs more memory than the largest device has."""
    RESERVED = "reserved"
    """All workers that could run the job are drained or reserved for other projects."""
    PROJECT_LIMIT = "project_limit"
    KEY_LIMIT = "key_limit"
    LANE_BUSY = "lane_busy"
    """Another interactive job of the same API key is running."""
    BEHIND = "behind"
    """Other jobs come before this job in the queue."""
    DEVICES_BUSY = "devices_busy"
    """All devices that can run the job are busy. This job is the first in the queue."""
    STARTING = "starting"
    """A free worker will claim the job."""


class WaitingBecause(Response):
    """Reason why a job waits."""

    code: WaitingCode
    """Stable code for programs."""
    message: str
    """The reason in a sentence."""


class EstimatedStart(Response):
    """Expected start of a waiting job, in Unix seconds."""

    at: int
    """Expected start."""
    earliest: int
    """Expected start if the jobs before this job are faster than similar past jobs."""
    latest: int
    """Expected start if the jobs before this job are slower than similar past jobs."""


class QueuedJob(Response):
    """A running or waiting job in the queue."""

    id: str | None = None
    """Id of the job; null for a job of another project."""
    project: str
    """Name of the job's project."""
    model: str | None = None
    """Base model; null for a job of another project."""
    priority: int
    """Priority among the jobs of the project."""
    interactive: bool
    """True for an interactive job, see `Scheduling.interactive`."""
    worker: str | None = None
    """Id of the worker that runs the job; null for a waiting job."""
    started_at: int | None = None
    """Start of the current attempt, Unix seconds; null for a waiting job."""
    estimated_end: int | None = None
    """Expected end, Unix seconds; null if unknown, and for a waiting job."""
    step: int | None = None
    """Number of completed optimiser steps; null for a waiting job."""
    total_steps: int | None = None
    """Number of optimiser steps of the whole run; null until known."""
    steps_per_second: float | None = None
    """Optimiser steps per second since the current attempt reported its first step; null before
    the second reported step."""
    queue_position: int | None = None
    """Position in the queue; null for a running job."""
    waiting_because: WaitingBecause | None = None
    """Reason why the job waits; null for a running job."""
    estimated_start: EstimatedStart | None = None
    """Expected start; null for a running job, and if there is no estimate."""


class Queue(Response):
    """The queue at this moment."""

    object: Literal["queue"] = "queue"
    running: list[QueuedJob]
    """Running jobs, the oldest attempt first."""
    waiting: list[QueuedJob]
    """Waiting jobs in the order of their expected start, at most `limit` of them."""
    num_waiting: int
    """Number of all waiting jobs."""
    devices: int
    """Number of live training workers."""
    free_devices: int
    """Number of training workers that are ready but have no job."""


class ProjectShare(Response):
    """Share of the devices that a project gets."""

    id: str
    object: Literal["queue.project"] = "queue.project"
    name: str
    """Name of the project."""
    weight: float
    """Weight of the project: projects with waiting jobs share the devices in proportion to their
    weights."""
    guaranteed_devices: int
    """Number of guaranteed devices. While the project uses fewer devices than this number, its jobs
    start before the jobs of projects that use all their guaranteed devices."""
    max_running_jobs: int | None = None
    """Maximum number of the project's running jobs; null means no limit."""
    max_queued_jobs: int | None = None
    """Maximum number of the project's waiting jobs; null means no limit."""
    max_device_hours: float | None = None
    """Maximum device-hours in 30 days; null means no limit."""
    running_jobs: int
    """Number of jobs that are running now."""
    queued_jobs: int
    """Number of jobs that are waiting now."""
    decayed_device_seconds: float
    """Device-seconds that the project used. A second counts half after one day, a quarter after two
    days, and so on. The queue orders projects by this value divided by `weight`."""


class Limits(Request):
    """New limits of a key. A missing field stays unchanged; null removes the limit."""

    max_running_jobs: int | None = Field(default=None, ge=0, le=MAX_STEP)
    """Maximum number of running jobs."""
    max_queued_jobs: int | None = Field(default=None, ge=0, le=MAX_STEP)
    """Maximum number of waiting jobs."""
    max_device_hours: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    """Maximum device-hours in 30 days."""


class ShareChange(Limits):
    """New share and limits of a project. A missing field stays unchanged."""

    weight: float = Field(default=1.0, ge=0.001, le=1000.0, allow_inf_nan=False)
    """Weight of the project: projects with waiting jobs share the devices in proportion to their
    weights."""
    guaranteed_devices: int = Field(default=0, ge=0, le=MAX_STEP)
    """Number of guaranteed devices. While the project uses fewer devices than this number, its jobs
    start before the jobs of projects that use all their guaranteed devices."""


class KeyLimits(Response):
    """Limits of the jobs of one key."""

    id: str
    object: Literal["queue.key"] = "queue.key"
    name: str
    """Name of the key."""
    max_running_jobs: int | None = None
    """Maximum number of the key's running jobs; null means no limit."""
    max_queued_jobs: int | None = None
    """Maximum number of the key's waiting jobs; null means no limit."""
    max_device_hours: float | None = None
    """Maximum device-hours in 30 days; null means no limit."""


class WorkerState(StrEnum):
    """State of a training worker."""

    IDLE = "idle"
    BUSY = "busy"
    NOT_READY = "not_ready"
    DRAINED = "drained"
    GONE = "gone"
    """The worker has not reported for 35 s."""


class WorkerStatus(Response):
    """A training worker: a process that runs jobs on one device."""

    id: str
    object: Literal["worker"] = "worker"
    host: str
    """Name of the worker's host."""
    device: str
    """Device of the worker: `cpu`, or the GPU's name."""
    device_bytes: int | None = None
    """Memory of the device in bytes; null if unknown."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the worker, which jobs can ask for."""
    state: WorkerState
    """State of the worker."""
    job_id: str | None = None
    """Job that the worker runs; null for a job of another project."""
    project: str | None = None
    """Name of the running job's project."""
    since: int | None = None
    """Start of the running attempt, Unix seconds; without a running attempt, the start of the
    worker."""
    last_hello: int
    """Time of the worker's last report, Unix seconds."""
    models: list[str]
    """Names of the base models on the worker's host."""
    reason: str | None = None
    """Reason why the worker takes no jobs, or the reservation that limits its jobs."""
    version: str
    """Version of Tunesmith on the worker."""


class DrainRequest(Request):
    """Body of `POST /v1/workers/{worker}/drain`."""

    reason: Text = Field(default="", max_length=200)
    """Reason, which is shown to users whose jobs wait."""


class ReservationCreate(Request):
    """Body of `POST /v1/reservations`."""

    worker: Text = Field(min_length=1, max_length=255)
    """Id of a worker, or name of a host."""
    project_id: ObjectId | None = None
    """Id of the project whose jobs may run during the reservation; null if no job may run
    (maintenance)."""
    starts_at: int = Field(ge=0, le=MAX_SECONDS)
    """Start, Unix seconds. At the start, running jobs of other projects save a resume point and are
    queued again."""
    ends_at: int | None = Field(default=None, ge=0, le=MAX_SECONDS)
    """End, Unix seconds; null if the reservation lasts until it is deleted."""
    reason: Text = Field(default="", max_length=200)
    """Reason, which is shown to users whose jobs wait."""


class Reservation(Response):
    """Period in which a worker or a host runs only jobs of one project, or no jobs at all (a
    drain)."""

    id: str
    object: Literal["reservation"] = "reservation"
    worker: str
    """Id of a worker, or name of a host."""
    project_id: str | None = None
    """Id of the project whose jobs may run during the reservation; null for a drain."""
    starts_at: int
    """Start, Unix seconds."""
    ends_at: int | None = None
    """End, Unix seconds; null if the reservation has no end yet."""
    reason: str
    """Reason, which is shown to users whose jobs wait."""


class ReservationDeleted(Response):
    """Confirmation that a reservation was deleted."""

    id: str
    object: Literal["reservation"] = "reservation"
    deleted: bool = True


class DeviceUsageItem(Response):
    """Device-time of one group."""

    project: str | None = None
    """Name of the project. Each of `project`, `user`, `model` and `day` is null if `group_by` does
    not contain its name."""
    user: str | None = None
    """Name of the user; if the API key belongs to no user, name of the API key."""
    model: str | None = None
    """Base model."""
    day: str | None = None
    """Day in UTC, `2026-01-31`."""
    device_seconds: float
    """Seconds in which jobs used a device, including the seconds of lost work."""
    lost_seconds: float
    """Seconds of work that was lost because a worker died before it saved the next resume point.
    Projects are not charged for lost work."""


class DeviceUsage(Response):
    """Device-time of the last days."""

    object: Literal["usage"] = "usage"
    days: int
    """Number of days, today included."""
    device_seconds: float
    """Seconds in which jobs used a device, including the seconds of lost work."""
    lost_seconds: float
    """Seconds of work that was lost because workers died."""
    idle_seconds: float
    """Seconds in which workers were ready but had no job."""
    data: list[DeviceUsageItem]
    """One item per group; groups with more device-seconds come first. With `group_by=day`, items
    are in the order of days."""
