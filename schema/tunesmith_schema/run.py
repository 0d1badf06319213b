"""Run directory: the files that supervisor and trainer exchange.

Input: spec.json (RunSpec), data/, checkpoints/, plan.json (Plan). Output: events.jsonl (one
RunEvent per line), adapter/, report.json (RunReport), result.json (RunResult), evaluation.json
(Evaluation). control.json (ControlFile) may appear during the run.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator
from pydantic_core import to_json

from .base import Request
from .bounds import MAX_COUNT, MAX_FILES, MAX_SECONDS, JsonBound
from .documents import DOCUMENT_VERSION
from .early_stopping import MethodName
from .errors import ErrorCategory, ErrorCode
from .events import EventKind
from .graders import Grader
from .job_fit import check_job_fit, check_reinforcement
from .methods import Hyperparameters, ReinforcementHyperparameters
from .models import StoredFile
from .recipe import Recipe
from .renames import former_names

MAX_EVENT_BYTES = 64 * 1024
"""Maximum size of an event's `data` as JSON."""
EXIT_STOPPED = 75
"""Exit status (EX_TEMPFAIL) of a trainer that saved its state after a stop request."""


DocumentVersion = Annotated[int, Field(ge=1)]

_WITHOUT_EFFECT = {
    "document_version", "job_id", "attempt", "model_path", "forked", "training_file_name",
    "validation_file_name",
}  # fmt: skip
"""Fields of RunSpec that do not affect the training."""


class RunSpec(Request):
    """spec.json: the input of a trainer."""

    document_version: DocumentVersion = DOCUMENT_VERSION
    """Version of the document's format; a file without this field has version 1."""
    job_id: str
    attempt: int = Field(ge=1)
    model: str
    """Name of the base model as the user gave it."""
    model_path: str
    """Source of the base model: a local folder or a Hugging Face id."""
    training_file: str
    """Path of the training file, relative to the run directory."""
    validation_file: str | None = None
    """Path of the validation file, relative to the run directory."""
    training_file_name: str | None = None
    """User's name for the training file, shown in messages; None means the name in
    `training_file`."""
    validation_file_name: str | None = None
    """User's name for the validation file, shown in messages; None means the name in
    `validation_file`."""
    method: MethodName = "supervised"
    """Kind of training."""
    grader: Grader | None = None
    """Grader of a reinforcement run; None if all reward functions come from the command line."""
    hyperparameters: Hyperparameters | ReinforcementHyperparameters = Field(
        default_factory=Hyperparameters, union_mode="left_to_right"
    )
    """OpenAI's hyperparameters, which must not contradict the recipe."""
    recipe: Annotated[Recipe, AfterValidator(check_job_fit)] = Field(default_factory=Recipe)
    """Training settings."""
    seed: int = Field(default=0, ge=0)
    forked: bool = False
    """True if the run starts from a resume point of another job. The recipe may then differ from
    the other job's recipe, except in the fields that determine the saved state."""

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        if self.grader is not None and self.method != "reinforcement":
            raise ValueError("grader is only for method='reinforcement': remove it")
        if isinstance(self.hyperparameters, ReinforcementHyperparameters):
            check_reinforcement(self.hyperparameters, self.recipe)
        return self

    def display_name(self, file: str) -> str:
        """Return the name of a data file for messages; `file` is its path in this spec."""
        training = file == self.training_file
        name = self.training_file_name if training else self.validation_file_name
        return name or PurePath(file).name

    def sha256(self) -> str:
        """Return the SHA-256 of the fields that affect the training. All attempts of a job have the
        same SHA-256."""
        without = {name: True for name in _WITHOUT_EFFECT}
        # These fields change no choice, and former versions have no such fields.
        unused = {"max_seconds", "evaluate"}
        if self.recipe.validation_split == 0:
            unused.add("validation_split")
        document = self.model_dump(mode="json", exclude={**without, "recipe": unused})
        return hashlib.sha256(to_json(former_names(document))).hexdigest()


class Choice(Request):
    """Chosen value of a setting that was `"auto"`."""

    name: str
    """Name of a recipe field or an engine setting."""
    value: JsonValue
    """Chosen value."""
    reason: str
    """Reason for the value, with the number that determined the choice."""
    figures: dict[str, JsonValue] = Field(default_factory=dict)
    """Measurements, and other values that a repeated run needs to make the same choice."""


class Plan(Request):
    """plan.json: all choices of a run, reused when the run is resumed or repeated."""

    document_version: DocumentVersion = DOCUMENT_VERSION
    """Version of the document's format; a file without this field has version 1."""
    made_for: str
    """SHA-256 of the spec and data files for which the choices are valid."""
    choices: list[Choice]
    """Choices in the order in which they were made."""


class RunEvent(Request):
    """One line of events.jsonl."""

    source_seq: int = Field(ge=1, le=MAX_COUNT)
    """Number of the event within its attempt, counted from 1. The server uses this number to skip
    repeated events."""
    created_at: float = Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)
    """Time of the event, Unix seconds."""
    kind: EventKind = EventKind.MESSAGE
    """Kind of the event; determines the content of `data`."""
    level: Literal["info", "warn", "error"] = "info"
    message: str = Field(max_length=4000)
    data: Annotated[dict[str, JsonValue], JsonBound(MAX_EVENT_BYTES)] = Field(default_factory=dict)
    """Content of the event; the keys depend on its kind. METRICS has `step`, `total_steps` and the
    value of each metric. CHECKPOINT has `step`, `directory` and `metrics`. RESUME_POINT has `step`
    and `directory`. SAMPLES has `step`, `file` and `count`. RESUMED has `step`. PHASE has `phase`
    and `seconds`. CHOICE has `name`, `value` and `reason`. Paths are relative to the run
    directory."""
    files: Annotated[list[StoredFile], Field(max_length=MAX_FILES, fail_fast=True)] | None = None
    """Stored files of a CHECKPOINT, RESUME_POINT or SAMPLES event; the supervisor adds them after
    the upload."""


class JobFailure(Request):
    """Reason why a run failed, with a remedy."""

    category: ErrorCategory
    """Category of the error: what must be changed to fix the error."""
    code: ErrorCode
    """Stable code for programs."""
    message: str = Field(max_length=4000)
    hint: str | None = Field(default=None, max_length=1000)
    """Suggested next step."""
    param: str | None = Field(default=None, max_length=200)
    """Request field that caused the failure."""


class RunResult(Request):
    """result.json: outcome of a run, written exactly once, by an atomic rename. A successful run
    evaluates its result after it has written result.json. A failed or stopped run ends after it has
    written result.json."""

    outcome: Literal["succeeded", "failed", "stopped"]
    """Outcome of the run. `stopped` means that the run saved its state at a step boundary on
    request; the job is not finished."""
    kind: Literal["lora", "full"] | None = None
    """Kind of weights in `directory`, if the run succeeded."""
    directory: str | None = None
    """Folder with the adapter or weights, relative to the run directory."""
    step: int = 0
    """Last optimiser step. If the run succeeded, this is the step of the weights in `directory`."""
    trained_tokens: int = 0
    """Number of tokens that contributed to the loss."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Last value of each metric."""
    error: JobFailure | None = None
    """Reason for the failure, if the run failed."""


class ControlAction(StrEnum):
    """Action that control.json requests from a trainer."""

    CANCEL = "cancel"
    """Exit immediately and keep nothing."""
    STOP = "stop"
    """End the training at the next step and keep the result."""


class ControlFile(Request):
    """control.json: the supervisor's command to the trainer."""

    action: ControlAction
    """Action to take at the next step boundary."""
