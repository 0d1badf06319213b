"""`/v1/evaluations`: evaluations on demand, and results of lm-eval.

An evaluation on demand (`kind` is `data`) runs on a training worker between two jobs. The client
runs lm-eval, which uses `/v1/completions`, and sends its results (`kind` is `tasks`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from .base import Request, Response, Text, with_example
from .bounds import MAX_COUNT, MAX_STEP, JsonBound, ObjectId
from .evaluation import EvaluatedOn, Evaluation
from .graders import Grader
from .jobs import JobError
from .models import StoredFile
from .run import JobFailure
from .sampling import ModelName
from .worker import ClaimedFile

MAX_TASKS = 1000
MAX_ANSWER_TOKENS = 512
"""Maximum length of an answer that a grader scores, in tokens."""
_Name = Annotated[Text, Field(min_length=1, max_length=200)]


class EvaluationStatus(StrEnum):
    """State of an evaluation."""

    QUEUED = "queued"
    """The evaluation waits until its file is validated and a training worker is free."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The evaluation failed; `error` has the reason."""
    CANCELLED = "cancelled"


class TaskResult(Request):
    """Result of one task of lm-eval."""

    task: _Name
    """Name of the task."""
    metrics: Annotated[dict[_Name, FiniteFloat], Field(max_length=100)]
    """Values of the metrics. A name consists of a metric and a filter of lm-eval, such as
    `acc,none`."""
    errors: Annotated[dict[_Name, FiniteFloat], Field(max_length=100)] = Field(default_factory=dict)
    """Standard errors of the metrics, with the same keys."""
    samples: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Number of evaluated documents."""
    n_shot: int | None = Field(default=None, ge=0, le=MAX_STEP)
    """Number of examples in each prompt."""
    version: Text | None = Field(default=None, max_length=64)
    """Version of the task."""


class TaskResults(Request):
    """Results of lm-eval for one model."""

    harness: Annotated[Text, Field(max_length=64)]
    """Name and version of the evaluation program, such as `lm-eval 0.4.13`."""
    tasks: Annotated[list[TaskResult], Field(min_length=1, max_length=MAX_TASKS)]
    """Result of each task."""
    limit: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Maximum number of documents of a task; null means all."""


class EvaluationCreate(Request):
    """Body of `POST /v1/evaluations`."""

    model_config = with_example({"model": "my-model", "file": "file-abc123"})

    kind: Literal["data", "tasks"] = "data"
    """Kind of evaluation. `data`: evaluate the model on a file. `tasks`: store results of
    lm-eval."""
    model: ModelName
    """Base model, tuned model (`ft:...`) or checkpoint (`ft:...:ckpt-step-N`)."""
    against: ModelName | None = None
    """Model to compare with. A tuned model or checkpoint is by default compared with its base
    model. A base model is by default not compared."""
    file: ObjectId | None = None
    """Id of a file with the purpose `fine-tune`; required for `data`."""
    grader: Grader | None = None
    """Grader that scores the model's greedy answers."""
    task_results: Annotated[TaskResults, JsonBound(512 * 1024)] | None = None
    """Results of lm-eval; required for `tasks`."""

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        needed, unused = ("file", ["task_results"])
        if self.kind == "tasks":
            needed, unused = ("task_results", ["file", "grader", "against"])
        if getattr(self, needed) is None:
            raise ValueError(f"'{needed}' is required if 'kind' is '{self.kind}'")
        for name in unused:
            if getattr(self, name) is not None:
                raise ValueError(f"'{name}' is not allowed if 'kind' is '{self.kind}'")
        if self.against == self.model:
            raise ValueError("'against' and 'model' must be different models")
        return self


class RequestedEvaluation(Response):
    """An evaluation on demand, or stored results of lm-eval."""

    id: str
    object: Literal["evaluation"] = "evaluation"
    kind: Literal["data", "tasks"]
    """Kind of evaluation. `data`: measured on a file. `tasks`: results of lm-eval."""
    created_at: int
    """Time of creation, in Unix seconds."""
    started_at: int | None = None
    """Time of the first claim by a worker, in Unix seconds."""
    finished_at: int | None = None
    """Time of the end, in Unix seconds."""
    model: str
    """Evaluated model."""
    against: str | None = None
    """Model with which the evaluated model is compared."""
    file: str | None = None
    """Id of the data file."""
    filename: str | None = None
    """Name of the data file."""
    grader: Grader | None = None
    """Grader of the answers."""
    owner: str | None = None
    """Name of the API key that created the evaluation."""
    status: EvaluationStatus
    """State of the evaluation."""
    error: JobError | None = None
    """Reason of the failure, if `status` is `failed`."""
    waiting_for: str | None = None
    """Reason why the evaluation is still queued; left out in lists."""
    verdict: str | None = None
    """Result in one sentence."""
    result: Evaluation | None = None
    """Result, if `kind` is `data`, in the form of a job's evaluation. In the result, the models are
    named `model` and `against`. Left out in lists."""
    task_results: TaskResults | None = None
    """Results of lm-eval, if `kind` is `tasks`."""


class EvaluationDeleted(Response):
    """Confirmation that an evaluation was deleted."""

    id: str
    object: Literal["evaluation.deleted"] = "evaluation.deleted"
    deleted: bool = True


class ClaimedModel(Response):
    """A model that a worker evaluates."""

    name: str
    """Name in the request."""
    base: str
    """Name of the base model. The worker finds the base model in the same way as for a job."""
    base_files: list[StoredFile] | None = None
    """Files of the base model, if Tunesmith trained the base model.
    `/internal/evaluations/{id}/files/{sha256}` returns the files."""
    adapter_files: list[StoredFile] | None = None
    """Files of a LoRA adapter on the base model."""


class EvaluationClaim(Response):
    """A leased evaluation."""

    evaluation_id: str
    fence: int
    """Number of the claim. Only the worker with the newest claim may report."""
    lease_seconds: float
    """Seconds from now to the end of the lease."""
    model: ClaimedModel
    against: ClaimedModel | None = None
    file: ClaimedFile
    """Data file."""
    on: EvaluatedOn
    """Origin of the rows: `training_file` if the model was trained on the data file."""
    grader: Grader | None = None
    losses: bool = True
    """True if the rows have answers; the worker then measures losses."""


class EvaluationLease(Request):
    """Lease of an evaluation: the worker, and the number of its claim."""

    worker_id: Annotated[Text, Field(min_length=1, max_length=128)]
    fence: int = Field(ge=1, le=MAX_STEP)


class EvaluationRenewal(Response):
    """Answer to a worker that renewed its lease."""

    lease_seconds: float
    """Seconds from now to the new end of the lease."""


class EvaluationOutcome(EvaluationLease):
    """Outcome of an evaluation, reported by a worker."""

    state: Literal["succeeded", "failed", "released", "crashed"]
    """Outcome. `released`: the worker shuts down, and another worker starts the evaluation again.
    `crashed`: the process was killed; after several crashes the evaluation fails."""
    result: Annotated[Evaluation, JsonBound(512 * 1024)] | None = None
    """Result, if `state` is `succeeded`."""
    error: JobFailure | None = None
    """Reason of the failure, if `state` is `failed` or `crashed`."""

    @model_validator(mode="after")
    def _has_what_its_state_needs(self) -> Self:
        if (self.result is not None) != (self.state == "succeeded"):
            raise ValueError("set 'result' if 'state' is 'succeeded', and leave it out otherwise")
        if (self.error is not None) != (self.state in ("failed", "crashed")):
            raise ValueError("set 'error' after a failure, and leave it out otherwise")
        return self
