"""Run directory: the files that supervisor and trainer exchange.

Input: spec.json (RunSpec), data/, checkpoints/, plan.json (Plan). Output: events.jsonl (one
RunEvent per line), adapter/, report.json (RunReport), result.json (RunResult). control.json
(ControlFile) may appear during the run.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator
from pydantic_core import to_json

from .base import Request
from .early_stopping import MethodName
from .errors import ErrorCategory, ErrorCode
from .events import EventKind
from .graders import Grader
from .job_fit import check_job_fit, check_reinforcement
from .methods import Hyperparameters, ReinforcementHyperparameters
from .models import StoredFile
from .recipe import Recipe
from .renames import former_names

EXIT_STOPPED = 75
"""Exit status of a trainer that was asked to stop and saved its state (EX_TEMPFAIL)."""


_WITHOUT_EFFECT = {
    "job_id", "attempt", "model_path", "forked", "training_file_name", "validation_file_name",
}  # fmt: skip
"""Fields of RunSpec that do not affect the training."""


class RunSpec(Request):
    """spec.json: the input of a trainer."""

    job_id: str
    attempt: int = Field(ge=1)
    model: str
    """Name of the base model as the user gave it."""
    model_path: str
    """Where to load the base model from: a local folder or a Hugging Face id."""
    training_file: str
    """Path relative to the run directory."""
    validation_file: str | None = None
    """Path relative to the run directory."""
    training_file_name: str | None = None
    """User's name of the training file, for messages. None: the name in `training_file`."""
    validation_file_name: str | None = None
    """User's name of the validation file, for messages."""
    method: MethodName = "supervised"
    """Kind of training."""
    grader: Grader | None = None
    """Reinforcement: the grader. None: the run uses only reward functions of the command line."""
    hyperparameters: Hyperparameters | ReinforcementHyperparameters = Field(
        default_factory=Hyperparameters, union_mode="left_to_right"
    )
    """OpenAI's hyperparameters, consistent with the recipe."""
    recipe: Annotated[Recipe, AfterValidator(check_job_fit)] = Field(default_factory=Recipe)
    """Training settings."""
    seed: int = Field(default=0, ge=0)
    forked: bool = False
    """True if the first resume point is another job's. The recipe may then differ from that job's
    in fields that do not determine the trained state."""

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        if self.grader is not None and self.method != "reinforcement":
            raise ValueError("grader is only for method='reinforcement': remove it")
        if isinstance(self.hyperparameters, ReinforcementHyperparameters):
            check_reinforcement(self.hyperparameters, self.recipe)
        return self

    def display_name(self, file: str) -> str:
        """Return the name of a data file for messages. `file`: its path in this spec."""
        training = file == self.training_file
        name = self.training_file_name if training else self.validation_file_name
        return name or PurePath(file).name

    def sha256(self) -> str:
        """Return the SHA-256 of the fields that affect the training. All attempts at a
        job have the same."""
        document = self.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
        return hashlib.sha256(to_json(former_names(document))).hexdigest()


class Choice(Request):
    """A setting that was `"auto"`."""

    name: str
    """Recipe field or engine setting."""
    value: JsonValue
    """Chosen value."""
    reason: str
    """Reason, with the number that decided."""
    figures: dict[str, JsonValue] = Field(default_factory=dict)
    """Measurements, and values that a repeated run needs to make the same choice."""


class Plan(Request):
    """plan.json: all choices of a run, reused when the run is resumed or repeated."""

    made_for: str
    """SHA-256 of the spec and its data files. The choices are valid only for these."""
    choices: list[Choice]
    """Choices in the order in which they were made."""


class RunEvent(Request):
    """One line of events.jsonl."""

    source_seq: int = Field(ge=1)
    """Number of the event within its attempt: 1, 2, 3, ... Makes repeated reports harmless."""
    created_at: float = Field(ge=0, allow_inf_nan=False)
    """Unix seconds."""
    kind: EventKind = EventKind.MESSAGE
    """Kind of the event; determines the content of `data`."""
    level: Literal["info", "warn", "error"] = "info"
    message: str = Field(max_length=4000)
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """METRICS: `step`, `total_steps` and the values. CHECKPOINT: `step`, `directory` (relative to
    the run directory), `metrics`. RESUME_POINT: `step`, `directory`. SAMPLES: `step`, `file`
    (relative to the run directory), `count`. RESUMED: `step`. PHASE: `phase`, `seconds`. CHOICE:
    `name`, `value`, `reason`."""
    files: list[StoredFile] | None = None
    """Stored files of CHECKPOINT, RESUME_POINT and SAMPLES; the supervisor adds them after the
    upload."""


class JobFailure(Request):
    """Reason for the failure of a run, with a remedy."""

    category: ErrorCategory
    """Part of the system that must change to fix the error."""
    code: ErrorCode
    """Stable code for programs."""
    message: str = Field(max_length=4000)
    hint: str | None = Field(default=None, max_length=1000)
    """Next thing to try."""
    param: str | None = None
    """Request field that caused the failure."""


class RunResult(Request):
    """result.json: written last, by an atomic rename, exactly once."""

    outcome: Literal["succeeded", "failed", "stopped"]
    """`stopped`: the run saved its state at a step boundary on request; the job is not finished."""
    kind: Literal["lora", "full"] | None = None
    """With `succeeded`: the content of `directory`."""
    directory: str | None = None
    """Folder with the adapter or weights, relative to the run directory."""
    step: int = 0
    """Last optimiser step; with `succeeded` the step of the weights in `directory`."""
    trained_tokens: int = 0
    """Number of tokens with a loss."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Last value of each metric."""
    error: JobFailure | None = None
    """Reason for the failure, with `failed`."""


class ControlAction(StrEnum):
    """Action that control.json requests from a trainer."""

    CANCEL = "cancel"
    """Exit at once and keep nothing."""
    STOP = "stop"
    """End the training at this step and keep the result, as after the last step."""


class ControlFile(Request):
    """control.json: the supervisor's command to the trainer."""

    action: ControlAction
    """Action at the next step boundary."""
