"""`method`: the kind of training, with OpenAI's hyperparameters."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from .base import Request
from .early_stopping import MethodName
from .graders import Grader, reads_completion
from .recipe import Auto


class Hyperparameters(Request):
    """OpenAI's three knobs. `recipe` says the same in absolute terms."""

    n_epochs: Annotated[int, Field(ge=1, le=1000)] | Auto = "auto"
    """Passes over the data."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] | Auto = "auto"
    """Rows in one optimiser step."""
    learning_rate_multiplier: Annotated[float, Field(gt=0, le=1000)] | Auto = "auto"
    """Factor on the learning rate that would be chosen automatically."""


class SupervisedMethod(Request):
    """Settings of supervised fine-tuning."""

    hyperparameters: Hyperparameters | None = None
    """Without them all are automatic."""


class ReinforcementHyperparameters(Hyperparameters):
    """OpenAI's, for reinforcement tuning. `batch_size` counts prompts."""

    compute_multiplier: Annotated[float, Field(gt=0, le=128)] | Auto = "auto"
    """Factor on the completions for each prompt; `recipe.grpo.num_generations` says how many."""
    eval_interval: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Steps between two evaluations, as `recipe.eval_steps`."""
    eval_samples: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    """Completions for each prompt of the validation file. `"auto"`: 1."""
    reasoning_effort: Literal["default"] = "default"
    """OpenAI's; a model here thinks as its chat template has it."""


class ReinforcementMethod(Request):
    """Settings of reinforcement tuning."""

    grader: Grader
    """What scores a completion."""
    hyperparameters: ReinforcementHyperparameters | None = None
    """Without them all are automatic."""

    @field_validator("grader")
    @classmethod
    def _reads_completions(cls, grader: Grader) -> Grader:
        if not reads_completion(grader):
            raise ValueError(
                "it gives every completion of a prompt the same score, and nothing would be "
                "learned: let input or reference read {{sample.output_text}}"
            )
        return grader


class Method(Request):
    """The kind of training."""

    type: MethodName
    """Which of the members below holds."""
    supervised: SupervisedMethod | None = None
    """Its hyperparameters; without them all are automatic."""
    reinforcement: ReinforcementMethod | None = None
    """Its grader and hyperparameters."""

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        if self.type == "reinforcement" and self.reinforcement is None:
            raise ValueError("reinforcement is missing: it must have a grader")
        others = {"supervised": "reinforcement", "reinforcement": "supervised"}
        if getattr(self, others[self.type]) is not None:
            raise ValueError(f"type is '{self.type}': leave {others[self.type]} out")
        return self

    def hyperparameters(self) -> Hyperparameters | None:
        """Of the member in force."""
        chosen = self.reinforcement or self.supervised
        return chosen.hyperparameters if chosen else None
