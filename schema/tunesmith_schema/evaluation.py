"""Results of an evaluation: two or more models compared on the same rows.

At the end of a job, the trainer writes evaluation.json; the worker sends it with the run report.
An evaluation on demand (evaluations.py) has the same result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Response

MAX_ANSWERS = 8
"""Maximum number of prompts whose answers an evaluation contains."""
MAX_TEXT = 2000
"""Maximum length of a prompt or an answer, in characters; the rest is left out."""

ModelName = Literal["base", "tuned", "best", "last", "model", "against"]
"""Compared models. At the end of a job, `base` is the model before training and `tuned` is the
job's result. `best` is the best checkpoint. `best` is evaluated only if the job's result is from
another step. `last` has the weights of the last step. `last` exists only with LoRA, and only if the
result is from an earlier step. In an evaluation on demand, `model` and `against` are the models of
the request."""
EvaluatedOn = Literal["validation_file", "validation_split", "training_file", "file"]
"""Origin of the rows. `training_file`: a sample of rows that the model was trained on, so the
scores show the fit, not the generalisation. `file`: the file of an evaluation on demand."""
Outcome = Literal["better", "worse", "no_difference"]


class ModelScores(Response):
    """Scores of one model on all rows of the evaluation."""

    model: ModelName
    """Name of the model."""
    step: int | None = None
    """Optimiser step of the weights; null for the base model."""
    loss: float | None = None
    """Mean negative log-likelihood per answer token, in nats; null for reinforcement jobs, or if
    the value is not finite."""
    perplexity: float | None = None
    """Perplexity: exp(`loss`)."""
    token_accuracy: float | None = None
    """Share of answer tokens that are the model's most likely token."""
    reward: float | None = None
    """Mean reward of the greedy answers; only with a grader."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Mean score of each grader; only with a grader."""


class ModelComparison(Response):
    """Difference between the metrics of two models, with a confidence interval."""

    model: ModelName
    """Compared model."""
    against: ModelName
    """Model that `model` is compared with."""
    metric: Literal["loss", "reward"]
    """Compared metric."""
    difference: float | None = None
    """Advantage of `model`: decrease of the loss in nats per token, or increase of the reward per
    answer. The difference is null if a loss is not finite."""
    low: float | None = None
    """Lower bound of the paired bootstrap confidence interval; null if there is no interval."""
    high: float | None = None
    """Upper bound of the interval."""
    level: float
    """Confidence level of this interval: 0.99, or higher if the evaluation has several intervals.
    Then all intervals together contain their true differences with a probability of 99 %."""
    outcome: Outcome
    """Outcome of the comparison. `no_difference` means that the rows show no difference: the
    interval contains 0, or there are fewer than 8 rows."""
    verdict: str
    """Outcome in words, for example "better by 0.31 ± 0.05 nats on 80 rows"."""


class EvaluatedAnswer(Response):
    """Greedy answers of all models to one prompt. Texts are cut after 2,000 characters."""

    row: int
    """Number of the row in its file, starting at 1."""
    prompt: str
    """Text before the answer, with the chat template applied."""
    expected: str | None = None
    """Answer in the data; null for reinforcement."""
    answers: dict[str, str] = Field(default_factory=dict)
    """Answer of each model; the keys are the models' names."""
    rewards: dict[str, float | None] = Field(default_factory=dict)
    """Reward of each answer (reinforcement); the keys are the models' names."""


class EvaluationSummary(Response):
    """Main result of an evaluation."""

    verdict: str
    """Verdict of the first comparison, with the number of evaluated rows and their source."""
    outcome: Outcome | None = None
    """Outcome as a stable code for programs; null if there was no comparison."""
    metric: Literal["loss", "reward"]
    """Compared metric."""
    on: EvaluatedOn
    """Origin of the rows."""
    rows: int
    """Number of rows."""
    base: float | None = None
    """Value of `metric` for the base model, or for `against` in an evaluation on demand; null if
    the value was not measured or is not finite."""
    tuned: float | None = None
    """Value of `metric` for the tuned model, or for `model` in an evaluation on demand."""


class Evaluation(EvaluationSummary):
    """Result of an evaluation; also the content of evaluation.json."""

    file: str
    """Name of the data file."""
    rows_available: int
    """Number of rows that are available for the evaluation."""
    answer_tokens: int = 0
    """Number of answer tokens in the rows; 0 for reinforcement."""
    models: list[ModelScores] = Field(default_factory=list)
    """Scores of each model."""
    comparisons: list[ModelComparison] = Field(default_factory=list)
    """Comparisons of two models each, the most important first."""
    answers: Annotated[list[EvaluatedAnswer], Field(max_length=MAX_ANSWERS)] = Field(
        default_factory=list
    )
    """Greedy answers of all models to some prompts."""
    left_out: list[str] = Field(default_factory=list)
    """Parts of the evaluation that were left out, each with the reason: time, memory or missing
    weights."""
    seconds: float = 0.0
    """Duration of the evaluation in seconds."""
    job_share: float | None = None
    """Duration of the evaluation, divided by the time that the trainer ran before the
    evaluation."""

    def summary(self) -> EvaluationSummary:
        return EvaluationSummary.model_validate(
            {name: getattr(self, name) for name in EvaluationSummary.model_fields}
        )


class JobEvaluation(Evaluation):
    """Answer of `GET /v1/fine_tuning/jobs/{id}/evaluation`."""

    object: Literal["fine_tuning.job.evaluation"] = "fine_tuning.job.evaluation"
    job_id: str
    """Id of the job."""
    attempt: int
    """Number of the attempt that made this evaluation."""
