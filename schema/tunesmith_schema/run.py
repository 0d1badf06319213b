"""The run directory: what the supervisor hands to a trainer and what the trainer leaves behind.

spec.json (RunSpec), data/, checkpoints/, plan.json (Plan) -> events.jsonl (RunEvent a line),
adapter/, report.json (RunReport), result.json (RunResult). control.json (ControlFile) may appear
while it runs.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator
from pydantic_core import to_json

from .base import Request
from .early_stopping import MethodName
from .errors import ErrorCategory, ErrorCode
from .events import EventKind
from .graders import Grader
from .job_fit import check_reinforcement, fits_job
from .methods import Hyperparameters, ReinforcementHyperparameters
from .models import StoredFile
from .recipe import Recipe
from .renames import former_names

EXIT_STOPPED = 75
"""Exit status of a trainer that was asked to stop and left cleanly (EX_TEMPFAIL)."""


class RunSpec(Request):
    """spec.json: everything a trainer needs to know."""

    job_id: str
    attempt: int = Field(ge=1)
    model: str
    """The base model's name as the user gave it."""
    model_path: str
    """Where to load it from: a local folder or a hub id."""
    training_file: str
    """Path, relative to the run directory."""
    validation_file: str | None = None
    """Path, relative to the run directory."""
    method: MethodName = "supervised"
    """The kind of training."""
    grader: Grader | None = None
    """Reinforcement: what scores completions; None: reward functions given to the run itself."""
    hyperparameters: Hyperparameters | ReinforcementHyperparameters = Field(
        default_factory=Hyperparameters, union_mode="left_to_right"
    )
    """OpenAI's knobs; the recipe was checked against them."""
    recipe: Annotated[Recipe, AfterValidator(fits_job)] = Field(default_factory=Recipe)
    """How to train."""
    seed: int = Field(default=0, ge=0)
    forked: bool = False
    """The first resume point is another job's: the recipe may differ from the one it was made
    with, as far as what it holds still fits."""

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        if self.grader is not None and self.method != "reinforcement":
            raise ValueError("grader is for method='reinforcement': leave it out")
        if isinstance(self.hyperparameters, ReinforcementHyperparameters):
            check_reinforcement(self.hyperparameters, self.recipe)
        return self

    def sha256(self) -> str:
        """Of what decides how the run goes; another attempt at it has the same."""
        document = self.model_dump(
            mode="json", exclude={"job_id", "attempt", "model_path", "forked"}
        )
        return hashlib.sha256(to_json(former_names(document))).hexdigest()


class Choice(Request):
    """One thing that was `"auto"`."""

    name: str
    """The recipe field or engine knob."""
    value: JsonValue
    """What was chosen."""
    reason: str
    """Why, with the number that decided it."""
    figures: dict[str, JsonValue] = Field(default_factory=dict)
    """What was measured, and what a repeated run needs to do the same again."""


class Plan(Request):
    """plan.json: every choice made, re-used when the run is taken up again or repeated."""

    made_for: str
    """sha256 of the spec and of its data files: the choices hold for nothing else."""
    choices: list[Choice]
    """In the order in which they were made."""


class RunEvent(Request):
    """One line of events.jsonl."""

    source_seq: int = Field(ge=1)
    """1, 2, 3, ... within one attempt; makes a repeated report harmless."""
    created_at: float = Field(ge=0, allow_inf_nan=False)
    """Unix seconds."""
    kind: EventKind = EventKind.MESSAGE
    """Decides what `data` holds."""
    level: Literal["info", "warn", "error"] = "info"
    message: str = Field(max_length=4000)
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """METRICS: `step`, `total_steps` and the values. CHECKPOINT: `step`, `directory` (relative to
    the run directory), `metrics`. RESUME_POINT: `step`, `directory`. SAMPLES: `step`, `file`
    (relative to the run directory), `count`. RESUMED: `step`. PHASE:
    `phase`, `seconds`. CHOICE: `name`, `value`, `reason`."""
    files: list[StoredFile] | None = None
    """CHECKPOINT, RESUME_POINT and SAMPLES only, filled in by the supervisor once the files are
    stored."""


class JobFailure(Request):
    """Why a run ended badly, in words a user can act on."""

    category: ErrorCategory
    """Who can mend it."""
    code: ErrorCode
    """Stable, for programs."""
    message: str = Field(max_length=4000)
    hint: str | None = Field(default=None, max_length=1000)
    """The next thing to try."""
    param: str | None = None
    """The request field it is about."""


class RunResult(Request):
    """result.json: written last, by rename, exactly once."""

    outcome: Literal["succeeded", "failed", "stopped"]
    """`stopped`: left at a step boundary because it was asked to; the job is not over."""
    kind: Literal["lora", "full"] | None = None
    """With `succeeded`: what the folder holds."""
    directory: str | None = None
    """Folder with the adapter or weights, relative to the run directory."""
    step: int = 0
    """The last one; with `succeeded`, the one whose weights the folder holds."""
    trained_tokens: int = 0
    """Tokens that carried loss."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """The last value of each metric."""
    error: JobFailure | None = None
    """With `failed`: why."""


class ControlAction(StrEnum):
    """What a trainer may be asked through control.json."""

    CANCEL = "cancel"
    """Leave at once and keep nothing."""
    STOP = "stop"
    """End the training here and keep what it has made, as if this had been the last step."""


class ControlFile(Request):
    """control.json: the supervisor's order to the trainer."""

    action: ControlAction
    """What to do at the next step boundary."""
