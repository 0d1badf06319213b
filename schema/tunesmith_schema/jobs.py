"""Fine-tuning jobs: the create request, the job, its states and their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from .base import Request, Response, Text, with_example
from .bounds import JsonBound, Metadata, ObjectId
from .errors import ErrorCategory
from .evaluation import EvaluationSummary
from .health import JobHealth
from .job_fit import check_job_fit, check_reinforcement
from .methods import Hyperparameters, Method, ReinforcementHyperparameters
from .recipe import Auto, Recipe
from .scheduling import EstimatedStart, Scheduling, WaitingBecause


class JobState(StrEnum):
    """State of a job; `wire_status` maps it to OpenAI's smaller set of values."""

    VALIDATING_FILES = "validating_files"
    """A worker of the queue `light` (short CPU tasks) validates the data set."""
    QUEUED = "queued"
    """The job waits for a training worker."""
    RUNNING = "running"
    """A worker holds the lease."""
    PAUSING = "pausing"
    """A pause was requested; the worker saves a resume point and releases the job."""
    PAUSED = "paused"
    """No worker holds the job; `resume` queues it again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

_ENDS = frozenset({JobState.FAILED, JobState.CANCELLED})

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        JobState.VALIDATING_FILES: _ENDS | {JobState.QUEUED},
        JobState.QUEUED: _ENDS | {JobState.RUNNING, JobState.PAUSED},
        JobState.RUNNING: _ENDS | {JobState.SUCCEEDED, JobState.PAUSING, JobState.QUEUED},
        JobState.PAUSING: _ENDS | {JobState.SUCCEEDED, JobState.PAUSED, JobState.RUNNING},
        JobState.PAUSED: _ENDS | {JobState.QUEUED},
        JobState.SUCCEEDED: frozenset(),
        JobState.FAILED: frozenset(),
        JobState.CANCELLED: frozenset(),
    }
)
"""Allowed state changes. `running -> queued` happens when the worker is lost or releases the job.
`pausing -> running` happens when the pause is cancelled before the worker releases the job."""

_WIRE = {JobState.PAUSING: JobState.RUNNING, JobState.PAUSED: JobState.QUEUED}


def wire_status(state: JobState) -> str:
    """Return OpenAI's status for a state: `running` for `pausing`, `queued` for `paused`."""
    return str(_WIRE.get(state, state))


class JobCreate(Request):
    """Body of `POST /v1/fine_tuning/jobs`."""

    model_config = with_example(
        {
            "model": "tiny-llama",
            "training_file": "file-0123456789abcdef01234567",
            "suffix": "support",
            "seed": 7,
            "metadata": {"team": "support"},
            "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
            "recipe": {"lora": {"r": 16, "lora_alpha": 32}, "learning_rate": 1e-4},
        }
    )

    model: Text = Field(min_length=1, max_length=512)
    """Base model: a Hugging Face id, a folder name or path in an allowed directory, or the name
    (`ft:...`) of a model made by full tuning."""
    training_file: ObjectId
    """Id of the uploaded training file."""
    validation_file: ObjectId | None = None
    """Id of the uploaded validation file, used to compute `valid_loss` or (reinforcement)
    `valid_reward`."""
    suffix: Text | None = Field(default=None, min_length=1, max_length=64)
    """Part of the tuned model's name. Characters that are not allowed in a name become hyphens."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Random seed of weights, shuffling and dropout; by default a random number, shown in the
    job."""
    metadata: Metadata | None = None
    """Metadata: at most 16 pairs, with keys of at most 64 and values of at most 512 characters."""
    integrations: Annotated[list[JsonValue], JsonBound(64 * 1024)] | None = None
    """Not available; only null or an empty list is accepted."""
    hyperparameters: Hyperparameters | None = None
    """OpenAI's hyperparameters; deprecated by OpenAI in favour of `method`."""
    method: Method | None = None
    """Kind of training and its hyperparameters, in OpenAI's current format."""
    recipe: Annotated[Recipe, AfterValidator(check_job_fit)] = Field(default_factory=Recipe)
    """Training settings with the names of PEFT and TRL; every field has a default."""
    scheduling: Scheduling | None = None
    """Priority of the job, and requirements on its worker."""

    @model_validator(mode="after")
    def _no_integrations(self) -> Self:
        if self.integrations:
            raise ValueError("integrations are not available: remove the field")
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        method, legacy = self.method, self.hyperparameters
        of_method = method and method.hyperparameters()
        if method and legacy and of_method and not _same(legacy, of_method):
            raise ValueError(
                f"hyperparameters and method.{method.type}.hyperparameters differ: set only one"
            )
        chosen, recipe = self.chosen_hyperparameters(), self.recipe
        if "auto" not in (chosen.n_epochs, recipe.num_train_epochs) and (
            chosen.n_epochs != recipe.num_train_epochs
        ):
            raise ValueError(
                f"hyperparameters.n_epochs={chosen.n_epochs} and "
                f"recipe.num_train_epochs={recipe.num_train_epochs} differ: set only one"
            )
        if chosen.n_epochs != "auto" and recipe.max_steps != "auto":
            raise ValueError(
                "hyperparameters.n_epochs and recipe.max_steps both set the length of the run: set "
                "only one"
            )
        if "auto" not in (chosen.learning_rate_multiplier, recipe.learning_rate):
            raise ValueError(
                "hyperparameters.learning_rate_multiplier scales the automatic learning rate: "
                "remove it, or remove recipe.learning_rate"
            )
        if isinstance(chosen, ReinforcementHyperparameters):
            check_reinforcement(chosen, recipe)
        else:
            _check_batch(chosen.batch_size, recipe)
        return self

    def chosen_hyperparameters(self) -> Hyperparameters:
        """Return the hyperparameters that the job uses, from `method` or `hyperparameters`."""
        of_method = self.method and self.method.hyperparameters()
        chosen = of_method or self.hyperparameters or Hyperparameters()
        if self.method and self.method.type == "reinforcement":
            return ReinforcementHyperparameters.model_validate(chosen.model_dump())
        return chosen


def _same(legacy: Hyperparameters, of_method: Hyperparameters) -> bool:
    return legacy.model_dump() == of_method.model_dump(include=set(Hyperparameters.model_fields))


def _check_batch(batch_size: int | Auto, recipe: Recipe) -> None:
    if batch_size == "auto":
        return
    rows, accumulated = recipe.per_device_train_batch_size, recipe.gradient_accumulation_steps
    known = (1 if rows == "auto" else rows) * (1 if accumulated == "auto" else accumulated)
    both = "auto" not in (rows, accumulated)
    if (both and known != batch_size) or batch_size % known:
        raise ValueError(
            f"hyperparameters.batch_size={batch_size} is not per_device_train_batch_size x "
            f"gradient_accumulation_steps ({rows} x {accumulated}): set batch_size or these two"
        )


class JobError(Response):
    """Reason why a job failed; all fields are null if the job has not failed."""

    code: str | None = None
    """Error code, one of `ErrorCode`."""
    message: str | None = None
    param: str | None = None
    """Request field that caused the failure, for example `training_file`."""
    category: ErrorCategory | None = None
    """Category of the error: what must be changed to fix the error."""
    hint: str | None = None
    """Suggested next step."""


class JobDeleted(Response):
    """Confirmation that a job was deleted."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    deleted: bool = True


class JobCurve(Response):
    """Small curve of a job's main metric: at most 64 points, each the mean over several steps."""

    name: str
    """Name of the metric: `train_loss`, or `reward` for a reinforcement job."""
    steps: list[int]
    """Last step of each point."""
    values: list[float]
    """Mean of the metric over the steps of each point."""


class JobPatch(Request):
    """Body of `PATCH /v1/fine_tuning/jobs/{id}`; missing fields keep their values."""

    model_config = with_example({"name": "support, slower", "pinned": True})

    name: Text | None = Field(default=None, min_length=1, max_length=200)
    """Display name; null removes the name."""
    notes: Text | None = Field(default=None, max_length=10_000)
    """Notes of the team; null removes the notes."""
    pinned: bool = Field(default=False, strict=True)
    """New value of `pinned`: true pins the job."""
    metadata: Metadata | None = None
    """New metadata, which replaces all old pairs; null removes all pairs."""


class Job(Response):
    """A fine-tuning job in OpenAI's format; Tunesmith adds the fields from `state` on."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    """Creation time in Unix seconds, like all times of a job."""
    finished_at: int | None = None
    """Time at which the job succeeded, failed or was cancelled."""
    estimated_finish: int | None = None
    """Expected end of the job, if known."""
    model: str
    fine_tuned_model: str | None = None
    """Name of the tuned model; null until the job has succeeded."""
    organization_id: str = "tunesmith"
    """OpenAI's field; always the same value."""
    status: Literal["validating_files", "queued", "running", "succeeded", "failed", "cancelled"]
    """OpenAI's status; `state` is more precise."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None = None
    """Id of the validation file, used to compute `valid_loss` or (reinforcement) `valid_reward`."""
    hyperparameters: Hyperparameters
    """OpenAI hyperparameters that the job uses, from `method` or `hyperparameters`."""
    method: dict[str, Any] | None = None
    """Kind of training, its hyperparameters and the reinforcement grader, in OpenAI's current
    format."""
    result_files: list[str] = Field(default_factory=list)
    """Id of a CSV file with the metrics of each step, once the job has ended. Download:
    `/v1/files/{id}/content`. The trained weights are at `/v1/adapters/{adapter_id}`."""
    trained_tokens: int | None = None
    """Number of tokens that contributed to the loss in the whole run. In reinforcement, tokens of
    completions whose gradient is zero are included. Completions that `mask_truncated_completions`
    excludes do not count."""
    error: JobError | None = None
    """Reason for the failure; null unless the job failed."""
    integrations: list[Any] | None = None
    """OpenAI's field; always null."""
    metadata: dict[str, str] | None = None
    """Metadata of the create request."""
    seed: int
    suffix: str | None = None
    """Part of the tuned model's name."""
    state: JobState
    """State of the job."""
    phase: str | None = None
    """Current phase of the attempt, for example claim, download, load, train or upload."""
    recipe: Recipe
    """Training settings, including defaults."""
    adapter_id: str | None = None
    """Id of the result in `/v1/adapters/{id}`."""
    attempt: int = 0
    """Number of times a worker has claimed the job."""
    step: int = 0
    """Last completed optimiser step; after success, the step of the result's weights."""
    total_steps: int | None = None
    """Number of optimiser steps of the whole run; null until known."""
    cancel_requested: bool = False
    """True if the worker has been asked to cancel."""
    stop_requested: bool = False
    """True if the worker has been asked to stop early and keep the result."""
    forked_from: str | None = None
    """Id of the job whose resume point this job starts from."""
    forked_step: int | None = None
    """Step of the resume point that this job starts from."""
    retry_of: str | None = None
    """Id of the failed or cancelled job that this job retries."""
    owner: str | None = None
    """Name of the API key that created the job."""
    owner_id: str | None = None
    """Id of the API key that created the job."""
    name: str | None = None
    """Display name; `PATCH` changes it."""
    notes: str | None = None
    """Notes of the team; null in a list."""
    pinned: bool = False
    """True if the team has pinned the job."""
    queued_at: int | None = None
    """Time at which the job was last queued."""
    worker_id: str | None = None
    """Name of the worker that holds the job."""
    started_at: int | None = None
    """Time at which a worker first claimed the job."""
    health: JobHealth | None = None
    """Health of the training so far, in one word and one sentence; null before the first metrics.
    """
    last_metrics: dict[str, float | None] = Field(default_factory=dict)
    """Last values of `train_loss`, `valid_loss`, `reward` and `valid_reward`; null means NaN."""
    curve: JobCurve | None = None
    """Curve of the main metric; only in a list with `include=curve`."""
    evaluation: EvaluationSummary | None = None
    """Summary of the evaluation at the end of the job; null before the evaluation, or if there is
    none. See `GET /v1/fine_tuning/jobs/{id}/evaluation`."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """Priority of the job, and requirements on its worker."""
    queue_position: int | None = None
    """Position in the queue: 1 is the next job. Null in a list, or if the job is not queued."""
    waiting_because: WaitingBecause | None = None
    """Reason why the job is not running yet. Null in a list, or if the job is running or has
    ended."""
    estimated_start: EstimatedStart | None = None
    """Expected start of a queued job; null in a list, or if there is no estimate."""
    omitted: list[str] = Field(default_factory=list)
    """In a list, the names of the fields (`recipe`, `method`) that are left out because their
    values are too large. Retrieve the job to get the values."""
