"""Format of a resume point: a flat folder of safetensors and JSON files, listed in its manifest.

`checkpoints/resume-N/` of a run directory is the state after N optimiser steps. The manifest is
written last; without it, or with other files than it lists, the folder is not a resume point.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"
TRAINED = "trained.safetensors"
"""Trainable parameters under the model's parameter names, in their training dtype."""
OPTIMIZER = "optimizer.safetensors"
"""Tensors of the optimizer, as `exp_avg/PARAMETER`."""
OPTIMIZER_JSON = "optimizer.json"
"""Optimizer class, groups and numbers, and the scheduler."""
TRAINER_STATE = "trainer_state.json"
"""TrainerState of transformers, with the callbacks' state."""
RUN_STATE = "run_state.json"
"""Layouts, random states of Python and NumPy, and metrics not reported yet."""
RUN_TENSORS = "run_state.safetensors"
"""Random states of torch, and token sums not reported yet."""
PLAN = "plan.json"
PREFIX = "resume-"


class FileEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class RunIdentity(BaseModel):
    """Model, data, seed and settings that a resume point belongs to."""

    model_config = ConfigDict(extra="forbid")

    model: str
    """Name of the base model."""
    base_model: str
    """Fingerprint of the base model's files."""
    training_file: str
    """sha256"""
    validation_file: str | None
    """sha256"""
    seed: int
    recipe: dict[str, JsonValue]
    hyperparameters: dict[str, JsonValue]
    method: str = "supervised"
    grader: dict[str, JsonValue] | None = None
    """Grader of a reinforcement job."""


class Manifest(BaseModel):
    """Content of manifest.json."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = FORMAT
    step: int = Field(ge=0)
    """Number of optimiser steps done."""
    made_for: RunIdentity
    made_with: dict[str, str]
    """Versions of the code. With others the run continues, but may not be bit-identical."""
    files: dict[str, FileEntry]
    """All other files by name."""


def resume_step(folder: Path) -> int | None:
    """Return N of `resume-N`; None for another name."""
    number = folder.name.removeprefix(PREFIX)
    is_valid = folder.name.startswith(PREFIX) and number.isascii() and number.isdecimal()
    return int(number) if is_valid else None


def list_resume_points(checkpoints: Path) -> list[Path]:
    """Return folders named as resume points, newest first, without verifying them."""
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
