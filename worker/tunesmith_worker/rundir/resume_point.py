"""Format of a resume point: a flat folder of safetensors and JSON files, listed in its manifest.

In a run directory, `checkpoints/resume-N/` holds the state after N optimiser steps. The manifest is
written after all other files. A resume point is valid only if its folder has a manifest, and all
files that the manifest lists exist and are unchanged.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tunesmith_schema.documents import DOCUMENT_VERSION

FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"
TRAINED = "trained.safetensors"
"""File with the trainable parameters under their names, in the dtype of training."""
OPTIMIZER = "optimizer.safetensors"
"""File of the optimizer's tensors, with names such as `exp_avg/PARAMETER`."""
OPTIMIZER_JSON = "optimizer.json"
"""File of the optimizer's class, groups and non-tensor values, and the scheduler's state."""
TRAINER_STATE = "trainer_state.json"
"""File of transformers' TrainerState, including the callbacks' states."""
RUN_STATE = "run_state.json"
"""File of the random states of Python and NumPy, and of metrics that no event contains yet. If a
reinforcement run trains several steps on the same completions, the file also has these
completions."""
RUN_TENSORS = "run_state.safetensors"
"""File of torch's random states, and of loss and token sums that no event contains yet. Like
RUN_STATE, the file may also have completions, as tensors."""
PLAN = "plan.json"
PREFIX = "resume-"


class FileEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class RunIdentity(BaseModel):
    """Model, data, seed and settings of the run that wrote a resume point.

    An unknown field makes the resume point unusable, because this release cannot compare the field.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    """Name of the base model."""
    base_model: str
    """Fingerprint of the base model's files."""
    training_file: str
    """SHA-256 of the training file."""
    validation_file: str | None
    """SHA-256 of the validation file."""
    seed: int
    recipe: dict[str, JsonValue]
    hyperparameters: dict[str, JsonValue]
    method: str = "supervised"
    grader: dict[str, JsonValue] | None = None
    """Grader of a reinforcement job."""


class Manifest(BaseModel):
    """Content of manifest.json."""

    document_version: int = Field(default=DOCUMENT_VERSION, ge=1)
    """Version of the manifest's fields; a manifest without this field has version 1."""
    format: Literal[1] = FORMAT
    step: int = Field(ge=0)
    """Number of completed optimiser steps."""
    made_for: RunIdentity
    made_with: dict[str, str]
    """Versions of the libraries that wrote the resume point.

    With other versions, a run can continue, but the run's results may differ in the last bits.
    """
    files: dict[str, FileEntry]
    """All files except the manifest; the keys are file names."""


def resume_step(folder: Path) -> int | None:
    """Return N for a folder named `resume-N`; None for any other name."""
    number = folder.name.removeprefix(PREFIX)
    is_valid = folder.name.startswith(PREFIX) and number.isascii() and number.isdecimal()
    return int(number) if is_valid else None


def list_resume_points(checkpoints: Path) -> list[Path]:
    """Return the folders named `resume-N`, newest first, without verifying them."""
    if not checkpoints.is_dir():
        return []
    folders = {
        step: folder
        for folder in checkpoints.iterdir()
        if (step := resume_step(folder)) is not None
    }
    return [folders[step] for step in sorted(folders, reverse=True)]


def remove_resume_points(checkpoints: Path) -> None:
    for folder in list_resume_points(checkpoints):
        shutil.rmtree(folder, ignore_errors=True)
