"""Fine-tuning jobs: the create body, the job, its states and which may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from .base import Request, Response, Text, with_example
from .errors import ErrorCategory
from .job_fit import check_reinforcement, fits_job
from .methods import Hyperparameters, Method, ReinforcementHyperparameters
from .recipe import Auto, Recipe


class JobState(StrEnum):
    """Where a job truly is. `status` on the wire is OpenAI's closed set, see `wire_status`."""

    VALIDATING_FILES = "validating_files"
    """A light worker is reading the data."""
    QUEUED = "queued"
    """Waits for a train worker."""
    RUNNING = "running"
    """A worker holds the lease."""
    PAUSING = "pausing"
    """Asked to pause; the worker saves a resume point and lets go."""
    PAUSED = "paused"
    """Holds no worker until resumed."""
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
"""Every legal change of state. `running -> queued` is a lost or released worker; `pausing ->
running` a pause that was called off before the worker had let go."""

_WIRE = {JobState.PAUSING: JobState.RUNNING, JobState.PAUSED: JobState.QUEUED}


def wire_status(state: JobState) -> str:
    """OpenAI's word for a state: `pausing` shows as running, `paused` as queued."""
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
    """Hub id, folder name or path below an allowed directory, or a full-tuned `ft:` model."""
    training_file: Text
    """Id of an uploaded file."""
    validation_file: Text | None = None
    """Id of an uploaded file; gives `valid_loss`, or `valid_reward` with reinforcement."""
    suffix: Text | None = Field(default=None, min_length=1, max_length=64)
    """Goes into the tuned model's name; what a name cannot hold becomes a hyphen."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seeds weights, shuffling and dropout; drawn and shown when not given."""
    metadata: dict[Text, Text] | None = None
    """At most 16 pairs; keys up to 64 characters, values up to 512."""
    integrations: list[JsonValue] | None = None
    """None is available; anything but an empty list is refused rather than ignored."""
    hyperparameters: Hyperparameters | None = None
    """Deprecated by OpenAI in favour of `method`."""
    method: Method | None = None
    """The kind of training and its hyperparameters, OpenAI's current form."""
    recipe: Annotated[Recipe, AfterValidator(fits_job)] = Field(default_factory=Recipe)
    """How to train, in PEFT's and TRL's words; everything has a default."""

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        for key, value in (self.metadata or {}).items():
            if len(key) > 64 or len(value) > 512:
                raise ValueError("metadata keys have at most 64 characters and values at most 512")
        if len(self.metadata or {}) > 16:
            raise ValueError(f"metadata has at most 16 pairs, got {len(self.metadata or {})}")
        if self.integrations:
            raise ValueError("integrations are not available: leave the field out")
        return self

    @model_validator(mode="after")
    def _one_word_for_one_thing(self) -> Self:
        method, given = self.method, self.hyperparameters
        of_method = method and method.hyperparameters()
        if method and given and of_method and not _same(given, of_method):
            raise ValueError(
                f"hyperparameters and method.{method.type}.hyperparameters differ: give one"
            )
        chosen, recipe = self.chosen_hyperparameters(), self.recipe
        if "auto" not in (chosen.n_epochs, recipe.num_train_epochs) and (
            chosen.n_epochs != recipe.num_train_epochs
        ):
            raise ValueError(
                f"hyperparameters.n_epochs={chosen.n_epochs} and "
                f"recipe.num_train_epochs={recipe.num_train_epochs} differ: give one"
            )
        if chosen.n_epochs != "auto" and recipe.max_steps != "auto":
            raise ValueError("hyperparameters.n_epochs and recipe.max_steps exclude each other")
        if "auto" not in (chosen.learning_rate_multiplier, recipe.learning_rate):
            raise ValueError(
                "hyperparameters.learning_rate_multiplier scales the automatic rate: "
                "leave it out when recipe.learning_rate is given"
            )
        if isinstance(chosen, ReinforcementHyperparameters):
            check_reinforcement(chosen, recipe)
        else:
            _check_batch(chosen.batch_size, recipe)
        return self

    def chosen_hyperparameters(self) -> Hyperparameters:
        """The hyperparameters in force, wherever they were given."""
        of_method = self.method and self.method.hyperparameters()
        chosen = of_method or self.hyperparameters or Hyperparameters()
        if self.method and self.method.type == "reinforcement":
            return ReinforcementHyperparameters.model_validate(chosen.model_dump())
        return chosen


def _same(legacy: Hyperparameters, of_method: Hyperparameters) -> bool:
    """As far as the older form goes."""
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
            f"gradient_accumulation_steps ({rows} x {accumulated}): give one or the other"
        )


class JobError(Response):
    """Why a job failed; `{}`-like with nulls on the wire while it has not."""

    code: str | None = None
    """One of `ErrorCode`."""
    message: str | None = None
    param: str | None = None
    """The request field it is about, for example `training_file`."""
    category: ErrorCategory | None = None
    """Who can mend it."""
    hint: str | None = None
    """The next thing to try."""


class Job(Response):
    """One fine-tuning job as OpenAI shows it; what follows `state` is ours."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    """Unix seconds, like every time here."""
    finished_at: int | None = None
    """Set once it succeeded, failed or was cancelled."""
    estimated_finish: int | None = None
    """When it should be done, as far as is known."""
    model: str
    fine_tuned_model: str | None = None
    """Name of the tuned model once it succeeded."""
    organization_id: str = "tunesmith"
    """OpenAI requires one; always the same here."""
    status: Literal["validating_files", "queued", "running", "succeeded", "failed", "cancelled"]
    """OpenAI's closed set; `state` is the true one."""
    training_file: str
    """Id of the data set."""
    validation_file: str | None = None
    """Id of the data set for `valid_loss` or `valid_reward`."""
    hyperparameters: Hyperparameters
    """OpenAI's knobs in force, wherever they were given."""
    method: dict[str, Any] | None = None
    """OpenAI's newer form: the kind of training, its hyperparameters and, for reinforcement, its
    grader."""
    result_files: list[str] = Field(default_factory=list)
    """Always empty: `adapter_id` and `/v1/adapters` have what was trained."""
    trained_tokens: int | None = None
    """Tokens that carried loss, over the whole run. Reinforcement: of all completions, whatever
    their gradient was, but for those that `mask_truncated_completions` left out."""
    error: JobError | None = None
    """Why it failed; null unless it did."""
    integrations: list[Any] | None = None
    """OpenAI's field; always null here."""
    metadata: dict[str, str] | None = None
    """As given on creation."""
    seed: int
    suffix: str | None = None
    """Part of the tuned model's name."""
    state: JobState
    """Where it truly is."""
    phase: str | None = None
    """Finer than `state`: claim, download, spawn, import, load, data, train, save, upload."""
    recipe: Recipe
    """How it is trained, defaults filled in."""
    adapter_id: str | None = None
    """What `/v1/adapters/{id}` calls the result."""
    attempt: int = 0
    """How often a worker has claimed it."""
    step: int = 0
    """Optimiser steps done in this attempt; once it succeeded, the step whose weights it kept."""
    total_steps: int | None = None
    """Optimiser steps of the whole run, once they are known."""
    cancel_requested: bool = False
    """Whether its worker has been asked to stop."""
    stop_requested: bool = False
    """Whether it was asked to end early and keep what it has made."""
    forked_from: str | None = None
    """The job from whose resume point it starts."""
    forked_step: int | None = None
    """The step of that resume point."""
    retry_of: str | None = None
    """The job that failed or was cancelled and that this one takes up."""
