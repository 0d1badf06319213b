"""Messages between workers and the server under `/internal`.

A training worker runs jobs and evaluations; a light worker validates uploaded files.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .base import Request, Response, Text
from .bounds import MAX_COUNT, MAX_FILES, MAX_STEP, Count, JsonBound, Step
from .early_stopping import MethodName
from .file_stats import MAX_COMPARED_ROWS, FileStats
from .files import FileObject, FileValidation
from .graders import Grader
from .methods import Hyperparameters, ReinforcementHyperparameters
from .models import StoredFile
from .recipe import Recipe
from .report import RunReport
from .run import JobFailure, RunEvent
from .scheduling import WorkerLabels

MAX_EVENTS_PER_REPORT = 500

_MAX_HASHES = (8 * MAX_COMPARED_ROWS + 2) // 3 * 4
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class WorkerEnrollment(Request):
    """First request of a worker, with the shared token. All later requests contain the worker's own
    secret."""

    worker_id: str = Field(min_length=1, max_length=128)
    queue: Literal["train", "light"]
    """Queue that the worker serves. The queue determines which data the worker may read."""
    secret_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """sha256 of the worker's secret."""


class WorkerHello(Request):
    """Heartbeat that every worker process sends every 10 s."""

    worker_id: Text = Field(min_length=1, max_length=128)
    queue: Literal["train", "light"]
    """Queue that the worker serves."""
    host: Text = Field(max_length=255)
    """Host name, for display."""
    device: Text = Field(max_length=255)
    """Device of the worker: `cpu`, or the GPU's name."""
    version: Text = Field(max_length=32)
    """Version of the worker's code."""
    models: list[Annotated[Text, Field(max_length=255)]] = Field(
        default_factory=list, max_length=1000
    )
    """Folder names of the base models on the worker's host."""
    not_ready: Text | None = Field(default=None, max_length=500)
    """Reason why the worker takes no jobs, for display: the worker is shutting down, or its device
    is unusable."""
    labels: WorkerLabels = Field(default_factory=dict)
    """Labels that jobs may ask for, for example `gpu: h100`."""
    device_bytes: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Memory of the device in bytes; null if unknown."""


class WorkerWelcome(Response):
    """Answer to a heartbeat."""

    jobs_waiting: bool
    """True if a claim would return a job or an evaluation now."""
    files_waiting: list[str] = Field(default_factory=list)
    """Ids of the oldest uploaded files that wait for validation. Empty for training workers."""


class ClaimRequest(Request):
    """A worker's request for the best eligible job."""

    worker_id: Text = Field(min_length=1, max_length=128)


class ClaimedFile(Response):
    """A data set that the worker downloads from `/internal/files/{file_id}/content`."""

    file_id: str
    filename: str
    bytes: int
    sha256: str


class ResumePoint(Response):
    """Stored state from which a run can continue."""

    step: int
    files: list[StoredFile]
    """Files of one folder; `manifest.json` describes them."""


class Claim(Response):
    """A leased job. Every report contains `fence`, the number of the claim; each new claim of the
    job has a higher number."""

    job_id: str
    attempt: int
    fence: int
    lease_seconds: float
    """Duration of the lease, counted from the claim or from the last report that the server
    answered."""
    queued_seconds: float
    """Time that the job waited in the queue before the claim."""
    model: str
    base_files: list[StoredFile] | None = None
    """Files of a base model that Tunesmith trained. None means that the worker finds the base model
    by its name."""
    training_file: ClaimedFile
    """Training data."""
    validation_file: ClaimedFile | None = None
    """Validation data, used to compute `valid_loss` or (reinforcement) `valid_reward`."""
    recipe: Recipe
    """Training settings, including defaults."""
    method: MethodName = "supervised"
    """Kind of training."""
    grader: Grader | None = None
    """Grader, for reinforcement only."""
    hyperparameters: Hyperparameters | ReinforcementHyperparameters = Field(
        union_mode="left_to_right"
    )
    """OpenAI's hyperparameters of the job."""
    seed: int
    step: int = 0
    """Last step whose metrics the server has."""
    resume_points: list[ResumePoint] = Field(default_factory=list)
    """Resume points of the run, newest first; `/internal/jobs/{id}/resume/{sha256}` returns the
    files."""
    forked: bool = False
    """True if another job with other settings saved the resume point (a fork, not a retry)."""


class ReadingClaim(Request):
    """A worker's request for an uploaded file to read and validate."""

    worker_id: Text = Field(min_length=1, max_length=128)


class FileReading(Response):
    """Answer to `ReadingClaim`: the file, and the worker's lease of the file."""

    file: FileObject
    """The file to read."""
    reading: int
    """Number of this lease of the file, from 1. The number is 0 if the file needs no validation, or
    if another worker reads the file."""
    lease_seconds: float
    """Seconds from now to the end of the lease."""


class ReadingLease(Request):
    """A lease of a file that a worker holds. Only the worker with the newest `reading` of the file
    may renew the lease, end it, or send the result."""

    worker_id: Text = Field(min_length=1, max_length=128)
    reading: int = Field(ge=1, le=2**31 - 1)
    """Number of the lease, from the answer to the claim."""


class ReadingEnd(ReadingLease):
    """Message by which a worker gives up the lease of a file, without a result."""

    crashed: bool = False
    """True if the process that read the file was killed; the file may be the cause."""


class FileFindings(Request):
    """Validation result and statistics of a file, from the worker that read it."""

    result: Annotated[FileValidation, JsonBound(512 * 1024)]
    """Result of the validation."""
    stats: Annotated[FileStats, JsonBound(64 * 1024)] | None = None
    """Lengths and duplicates of the rows; null if the file could not be read."""
    row_hashes: str | None = Field(default=None, max_length=_MAX_HASHES, pattern=_BASE64)
    """Hashes of the rows in base64, eight bytes per row in file order; zero for an unreadable row.
    Null for a file with too many rows."""


class ReadingResult(ReadingLease, FileFindings):
    """Message with the validation result of a file. The message also ends the worker's lease of the
    file."""


class Outcome(Request):
    """Outcome of an attempt."""

    state: Literal["succeeded", "failed", "cancelled", "released"]
    """Outcome of the attempt. `released` means that the worker shut down or paused the job; the
    attempt does not count as failed."""
    error: JobFailure | None = None
    """Reason for the failure, if the attempt failed."""
    kind: Literal["lora", "full"] | None = None
    """Kind of weights in `files`, if the attempt succeeded."""
    step: Step = 0
    trained_tokens: Count = 0
    """Number of tokens that contributed to the loss."""
    files: list[StoredFile] = Field(default_factory=list, max_length=MAX_FILES, fail_fast=True)
    """Files of the adapter or weights, already stored."""

    @model_validator(mode="after")
    def _success_has_something_to_show(self) -> Self:
        if self.state == "succeeded" and not self.files:
            raise ValueError("an attempt with state 'succeeded' must list its files, got none")
        return self


class Report(Request):
    """Heartbeat of a job: events since the last report and, at the end, the outcome."""

    worker_id: Text = Field(min_length=1, max_length=128)
    attempt: int = Field(ge=1, le=MAX_STEP)
    fence: int = Field(ge=1, le=MAX_COUNT)
    phase: Text | None = Field(default=None, max_length=64)
    """Current phase, shown as the job's `phase`."""
    events: list[RunEvent] = Field(default_factory=list, max_length=MAX_EVENTS_PER_REPORT)
    """New events in the order of their numbers; the server skips events that it already has."""
    run_report: RunReport | None = None
    """Current run report of the attempt, which replaces the previous run report. None keeps the
    previous run report."""
    outcome: Outcome | None = None
    """Outcome of the attempt; only in the last report."""


class Control(StrEnum):
    """The server's command to the worker that holds the lease."""

    CONTINUE = "continue"
    CANCEL = "cancel"
    PAUSE = "pause"
    """Save a resume point, free the device, and release the job."""
    STOP = "stop"
    """End the training at the next step and keep the result."""


class ReportReply(Response):
    """The server's answer to a report: a command and the stored progress."""

    control: Control
    """Command to follow."""
    accepted_seq: int
    """Highest stored `source_seq` of this attempt."""
    lease_seconds: float
    """Seconds from now to the new end of the lease."""
