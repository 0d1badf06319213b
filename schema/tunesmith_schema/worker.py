"""What workers and the server say to each other under `/internal`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .base import Request, Response
from .early_stopping import MethodName
from .graders import Grader
from .methods import Hyperparameters, ReinforcementHyperparameters
from .models import StoredFile
from .recipe import Recipe
from .report import RunReport
from .run import JobFailure, RunEvent

MAX_EVENTS_PER_REPORT = 500


class WorkerHello(Request):
    """An idle or busy worker process says it is there, every 10 s."""

    worker_id: str = Field(min_length=1, max_length=128)
    queue: Literal["train", "light"]
    """Which queue it serves."""
    host: str = Field(max_length=255)
    """Host name, for people."""
    device: str = Field(max_length=255)
    """For example `cpu` or a GPU's name."""
    version: str = Field(max_length=32)
    """Of the worker's code."""
    models: list[Annotated[str, Field(max_length=255)]] = Field(
        default_factory=list, max_length=1000
    )
    """Folder names of the base models that this host has."""
    not_ready: str | None = Field(default=None, max_length=500)
    """Why it takes no job, for people: it is being drained, or its device is not fit."""


class WorkerWelcome(Response):
    """Answer to a hello."""

    jobs_waiting: bool
    """Whether a claim would get something now."""


class ClaimRequest(Request):
    """A worker asks for the best eligible job."""

    worker_id: str = Field(min_length=1, max_length=128)


class ClaimedFile(Response):
    """A data set that the worker fetches from `/internal/files/{file_id}/content`."""

    file_id: str
    filename: str
    bytes: int
    sha256: str


class ResumePoint(Response):
    """Everything a run needs to go on from a step, stored."""

    step: int
    files: list[StoredFile]
    """One folder, flat; `manifest.json` tells what each is."""


class Claim(Response):
    """A job, leased. Every report quotes the fence; a higher one exists once the lease is lost."""

    job_id: str
    attempt: int
    fence: int
    lease_seconds: float
    """The claim lapses this long after the last report that the server answered."""
    queued_seconds: float
    """How long the job had waited when it was claimed."""
    model: str
    base_files: list[StoredFile] | None = None
    """The base model's files when it was trained here; None: the worker finds it by name."""
    training_file: ClaimedFile
    """What to train on."""
    validation_file: ClaimedFile | None = None
    """What to measure `valid_loss` or `valid_reward` on."""
    recipe: Recipe
    """As the user gave it, defaults filled in."""
    method: MethodName = "supervised"
    """The kind of training."""
    grader: Grader | None = None
    """Of reinforcement."""
    hyperparameters: Hyperparameters | ReinforcementHyperparameters = Field(
        union_mode="left_to_right"
    )
    """OpenAI's knobs in force."""
    seed: int
    step: int = 0
    """The last step whose metrics the server has."""
    resume_points: list[ResumePoint] = Field(default_factory=list)
    """What the run can go on from, newest first. Files: `/internal/jobs/{id}/resume/{sha256}`."""
    forked: bool = False
    """The resume point was made by another job, and with something else: a fork, not a retry."""


class Outcome(Request):
    """How an attempt ended."""

    state: Literal["succeeded", "failed", "cancelled", "released"]
    """`released`: the worker was told to go, or to pause; no attempt is charged."""
    error: JobFailure | None = None
    """With `failed`: why."""
    kind: Literal["lora", "full"] | None = None
    """With `succeeded`: what `files` are."""
    step: int = Field(default=0, ge=0)
    trained_tokens: int = Field(default=0, ge=0)
    """Tokens that carried loss."""
    files: list[StoredFile] = Field(default_factory=list)
    """The adapter or weights, already stored."""

    @model_validator(mode="after")
    def _success_has_something_to_show(self) -> Self:
        if self.state == "succeeded" and not self.files:
            raise ValueError("an attempt that succeeded names the files it made, got none")
        return self


class Report(Request):
    """Events since the last report, heartbeat, and once the outcome."""

    worker_id: str = Field(min_length=1, max_length=128)
    attempt: int = Field(ge=1)
    fence: int = Field(ge=1)
    phase: str | None = Field(default=None, max_length=64)
    """What the worker is doing, shown as the job's `phase`."""
    events: list[RunEvent] = Field(default_factory=list, max_length=MAX_EVENTS_PER_REPORT)
    """What is new, in order; those already stored are skipped."""
    run_report: RunReport | None = None
    """The attempt so far, in place of what was sent before; None: nothing new."""
    outcome: Outcome | None = None
    """With the last report only."""


class Control(StrEnum):
    """The server's order to whoever holds the lease."""

    CONTINUE = "continue"
    CANCEL = "cancel"
    PAUSE = "pause"
    """Save a resume point, give the device back, and release the job."""
    STOP = "stop"
    """End the training at the next step, and keep what it has made."""


class ReportReply(Response):
    """The server's answer to a report: what to do, and how far it has got."""

    control: Control
    """The order to follow."""
    accepted_seq: int
    """Highest `source_seq` of this attempt that is stored."""
    lease_seconds: float
    """The lease now lasts this long from here."""
