"""`method`: the kind of training, with OpenAI's hyperparameters."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from .base import Request
from .bounds import MAX_STEP
from .early_stopping import MethodName
from .graders import BoundedGrader, Grader, reads_completion
from .recipe import Auto


class Hyperparameters(Request):
    """OpenAI's three hyperparameters. To set the learning rate itself, not a multiplier, use
    `recipe`."""

    n_epochs: Annotated[int, Field(ge=1, le=1000)] | Auto = "auto"
    """Number of passes over the data."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] | Auto = "auto"
    """Number of rows per optimiser step."""
    learning_rate_multiplier: Annotated[float, Field(gt=0, le=1000)] | Auto = "auto"
    """Factor applied to the automatic learning rate."""


class SupervisedMethod(Request):
    """Settings of supervised fine-tuning."""

    hyperparameters: Hyperparameters | None = None
    """OpenAI's hyperparameters; all are `"auto"` by default."""


class ReinforcementHyperparameters(Hyperparameters):
    """OpenAI's hyperparameters of reinforcement tuning. `batch_size` is a number of prompts."""

    compute_multiplier: Annotated[float, Field(gt=0, le=128)] | Auto = "auto"
    """Factor applied to the automatic number of completions per prompt.
    `recipe.grpo.num_generations` sets the number of completions directly."""
    eval_interval: Annotated[int, Field(ge=1, le=MAX_STEP)] | Auto = "auto"
    """Number of steps between two evaluations; the same as `recipe.eval_steps`."""
    eval_samples: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    """Number of completions per prompt of the validation file; `"auto"` is 1."""
    reasoning_effort: Literal["default"] = "default"
    """OpenAI's field; it has no effect, because the chat template controls reasoning."""


class ReinforcementMethod(Request):
    """Settings of reinforcement tuning."""

    grader: BoundedGrader
    """Grader that scores the completions."""
    hyperparameters: ReinforcementHyperparameters | None = None
    """OpenAI's hyperparameters; all are `"auto"` by default."""

    @field_validator("grader")
    @classmethod
    def _reads_completions(cls, grader: Grader) -> Grader:
        if not reads_completion(grader):
            raise ValueError(
                "the grader gives every completion of a prompt the same score, so there is nothing "
                "to learn: use {{sample.output_text}} in input or reference"
            )
        return grader


class Method(Request):
    """Kind of training and its settings."""

    type: MethodName
    """Kind of training; the field `supervised` or `reinforcement` has its settings."""
    supervised: SupervisedMethod | None = None
    """Settings of supervised fine-tuning; all are `"auto"` by default."""
    reinforcement: ReinforcementMethod | None = None
    """Grader and hyperparameters of reinforcement tuning."""

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        if self.type == "reinforcement" and self.reinforcement is None:
            raise ValueError("method.reinforcement is required, with a grader")
        others = {"supervised": "reinforcement", "reinforcement": "supervised"}
        if getattr(self, others[self.type]) is not None:
            raise ValueError(f"type is '{self.type}': remove {others[self.type]}")
        return self

    def hyperparameters(self) -> Hyperparameters | None:
        """Return the hyperparameters of this kind of training."""
        chosen = self.reinforcement or self.supervised
        return chosen.hyperparameters if chosen else None
