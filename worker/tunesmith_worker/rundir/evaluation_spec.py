"""spec.json of an evaluation on demand, which the supervisor writes for the evaluating process.

The evaluating process writes evaluation.json (Evaluation) or failure.json (JobFailure) next to
spec.json."""

from __future__ import annotations

from pydantic import BaseModel

from tunesmith_schema import Grader
from tunesmith_schema.evaluation import EvaluatedOn

FAILURE = "failure.json"


class ModelFolders(BaseModel):
    """Weights of one model."""

    name: str
    """User's name of the model."""
    base: str
    """Folder of the base model, or its Hugging Face id."""
    adapter: str | None = None
    """Folder of a LoRA adapter on the base model."""


class EvaluationSpec(BaseModel):
    model: ModelFolders
    against: ModelFolders | None = None
    file: str
    """Path of the data file, relative to the folder of spec.json."""
    file_name: str
    """User's name of the data file."""
    on: EvaluatedOn
    grader: Grader | None = None
    losses: bool
    """True if losses of the rows' answers are measured."""
