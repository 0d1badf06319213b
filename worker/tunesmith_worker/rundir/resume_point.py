"""What a resume point is on disk: a flat folder of safetensors and JSON, named by its manifest.

`checkpoints/resume-N/` of a run directory, N optimiser steps done. The manifest is written last; a
folder without one, or with another file than it names, is no resume point. Does not import torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"
TRAINED = "trained.safetensors"
"""What trains, under the model's own parameter names, in the dtype that it trains in."""
OPTIMIZER = "optimizer.safetensors"
"""Its tensors, as `exp_avg/PARAMETER`."""
OPTIMIZER_JSON = "optimizer.json"
"""Its kind, its groups, its numbers, and the scheduler."""
TRAINER_STATE = "trainer_state.json"
"""transformers' TrainerState, the callbacks' state in it."""
RUN_STATE = "run_state.json"
"""Layouts, the random numbers of Python and NumPy, and metrics not yet told."""
RUN_TENSORS = "run_state.safetensors"
"""torch's random numbers, and sums over tokens not yet told."""
PLAN = "plan.json"
PREFIX = "resume-"


class FileEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class RunIdentity(BaseModel):
    """What a resume point belongs to. With anything else it would be another run."""

    model_config = ConfigDict(extra="forbid")

    model: str
    """The base model's name."""
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
    """Of reinforcement."""


class Manifest(BaseModel):
    """manifest.json"""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = FORMAT
    step: int = Field(ge=0)
    """Optimiser steps done."""
    made_for: RunIdentity
    made_with: dict[str, str]
    """Versions of the code: with others the run goes on, but perhaps not bit for bit."""
    files: dict[str, FileEntry]
    """All other files, by name."""


def resume_step(folder: Path) -> int | None:
    """N of `resume-N`; None: the name of something else."""
    number = folder.name.removeprefix(PREFIX)
    is_one = folder.name.startswith(PREFIX) and number.isascii() and number.isdecimal()
    return int(number) if is_one else None


def list_resume_points(checkpoints: Path) -> list[Path]:
    """Folders with a resume point's name, newest first; whether they are good is not looked at."""
    if not checkpoints.is_dir():
        return []
    named = {step: one for one in checkpoints.iterdir() if (step := resume_step(one)) is not None}
    return [named[step] for step in sorted(named, reverse=True)]


def remove_resume_points(checkpoints: Path) -> None:
    for folder in list_resume_points(checkpoints):
        shutil.rmtree(folder, ignore_errors=True)
