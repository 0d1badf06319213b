"""`recipe.grpo` and `recipe.rollout`: reinforcement tuning by GRPO, in TRL's words and with TRL's
meanings (https://arxiv.org/abs/2402.03300)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from .base import Request

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


class GRPORecipe(Request):
    """Groups of completions for each prompt; what is better than its group's mean becomes more
    likely."""

    num_generations: Annotated[int, Field(ge=2, le=1024)] | Literal["auto"] = "auto"
    """Completions for each prompt, the group. `"auto"`: 8."""
    prompts_per_step: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Prompts in one optimiser step. `"auto"`: 16, fewer where the data have fewer."""
    max_completion_length: Annotated[int, Field(ge=1, le=1_048_576)] | Literal["auto"] = "auto"
    """Tokens a completion may have. `"auto"`: 512, or what the model's context leaves beside the
    longest prompt."""
    temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    """Of sampling; the log-probabilities that are trained are those at this temperature."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Draw from the least set of most likely tokens with this much probability."""
    top_k: int = Field(default=0, ge=0)
    """Draw from so many most likely tokens; 0: all."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Draw from tokens with at least this share of the most likely one's probability."""
    loss_type: LossType = "dapo"
    """How tokens' losses are put together (and, from cispo on, what each is)."""
    beta: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Weight of the KL divergence from the model as it was before training; 0: none, and no pass
    to compute it."""
    epsilon: float = Field(default=0.2, ge=0.0, allow_inf_nan=False)
    """The ratio to the policy that drew is clipped below 1 minus this."""
    epsilon_high: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    """And above 1 plus this; None: as `epsilon`. With cispo it is the bound itself."""
    delta: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = None
    """A bound on the unclipped ratio as well; None: none."""
    num_iterations: int = Field(default=1, ge=1, le=64)
    """Optimiser steps on the same completions."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """The ratio is each token's own, or their geometric mean over the completion, which with
    `loss_type="grpo"` is GSPO (https://arxiv.org/abs/2507.18071)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Advantages are divided by the rewards' standard deviation in the group, in the step, or not.
    """
    mask_truncated_completions: bool = False
    """Leave completions that reached `max_completion_length` out of the loss."""
    top_entropy_quantile: float = Field(default=1.0, gt=0.0, le=1.0)
    """Train only this share of the tokens, those of the highest entropy in a forward pass."""

    @model_validator(mode="after")
    def _loss_fits(self) -> Self:
        if self.delta is not None and self.delta <= 1 + (self.epsilon_high or self.epsilon):
            raise ValueError(
                f"delta={self.delta:g} must be above 1 + epsilon_high: it bounds what the clipping "
                "leaves"
            )
        return self

    def doubts(self) -> Iterator[str]:
        """Sentences on settings that go together, but hardly as meant."""
        level, loss = self.importance_sampling_level, self.loss_type
        both = f"recipe.grpo.importance_sampling_level={level!r} with loss_type={loss!r}"
        if level == "sequence" and loss in ("bnpo", "dr_grpo", "dapo", "cispo"):
            yield (
                f"{both} weights each completion by its length: GSPO has loss_type='grpo', which "
                "weights all alike"
            )
        if level == "sequence" and loss == "vespo":
            yield f"{both}: the level has no effect, for VESPO's weights are of whole completions"
        if level == "token" and loss == "luspo":
            yield (
                f"{both} multiplies each token's loss by the completion's length: LUSPO has "
                "importance_sampling_level='sequence'"
            )


class RolloutRecipe(Request):
    """How completions are generated, and how they are laid out for training."""

    fast_inference: bool | Literal["auto"] = "auto"
    """`"auto"` and `false`: on the training weights themselves. `true`, vLLM, is not there yet."""
    shared_prompt: bool | Literal["auto"] = "auto"
    """A group's prompt goes through the model once in training. `"auto"`: where it makes the batch
    smaller by enough to pay."""

    @field_validator("fast_inference")
    @classmethod
    def _no_vllm(cls, value: bool | Literal["auto"]) -> bool | Literal["auto"]:
        if value is True:
            raise ValueError(
                "true asks for vLLM, which is not built in yet: leave it at 'auto', which "
                "generates on the training weights"
            )
        return value
