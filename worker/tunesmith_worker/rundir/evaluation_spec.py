"""spec.json of an evaluation on demand: the contract between the supervisor and the evaluating
process.

The process writes evaluation.json (Evaluation) or failure.json (JobFailure) to the same folder."""

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
    """Path of the data file, relative to the folder."""
    file_name: str
    """User's name of the data file."""
    on: EvaluatedOn
    grader: Grader | None = None
    losses: bool
    """True if losses of the rows' answers are measured."""
