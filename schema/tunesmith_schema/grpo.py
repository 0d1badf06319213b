"""`recipe.grpo` and `recipe.rollout`: reinforcement tuning by GRPO
(https://arxiv.org/abs/2402.03300), with TRL's names and meanings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from .base import Request

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


class GRPORecipe(Request):
    """Group relative policy optimisation: sample a group of completions for each prompt, and raise
    the likelihood of those with a reward above the group's mean."""

    num_generations: Annotated[int, Field(ge=2, le=1024)] | Literal["auto"] = "auto"
    """Group size: the number of completions per prompt. `"auto"`: 8."""
    prompts_per_step: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Number of prompts per optimiser step. `"auto"`: 16, or fewer if the data set has fewer
    prompts."""
    max_completion_length: Annotated[int, Field(ge=1, le=1_048_576)] | Literal["auto"] = "auto"
    """Largest number of tokens in a completion. `"auto"`: 512, or what the longest prompt leaves of
    the model's context."""
    temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    """Sampling temperature. The trained log-probabilities are computed at the same temperature."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling: sample from the smallest set of tokens whose probability sums to at least
    this. 1: all tokens."""
    top_k: int = Field(default=0, ge=0)
    """Sample from this number of most likely tokens. 0: all tokens."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Sample from the tokens whose probability is at least this share of the most likely token's.
    None: all tokens."""
    loss_type: LossType = "dapo"
    """Loss variant: the aggregation of the tokens' losses and, for `cispo`, `sapo`, `luspo` and
    `vespo`, also the loss of a token."""
    beta: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Weight of the KL divergence from the model before training. 0: no KL term and no forward pass
    of the reference model."""
    epsilon: float = Field(default=0.2, ge=0.0, allow_inf_nan=False)
    """Lower clipping bound: the ratio of the policy to the policy that sampled is clipped below 1 -
    `epsilon`."""
    epsilon_high: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    """Upper clipping bound: the ratio is clipped above 1 + `epsilon_high`. None: same as `epsilon`.
    With `cispo`: the bound itself."""
    delta: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = None
    """Upper bound of the unclipped ratio (two-sided clipping). None: no bound."""
    num_iterations: int = Field(default=1, ge=1, le=64)
    """Number of optimiser steps on the same completions."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """`"token"`: one ratio per token. `"sequence"`: one ratio per completion, the geometric mean of
    its tokens' ratios; with `loss_type="grpo"` this is GSPO (https://arxiv.org/abs/2507.18071)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the rewards in the group (`"group"`) or in the
    step (`"batch"`), or do not divide (`"none"`)."""
    mask_truncated_completions: bool = False
    """Exclude completions that reached `max_completion_length` from the loss."""
    top_entropy_quantile: float = Field(default=1.0, gt=0.0, le=1.0)
    """Train only this share of the tokens: those with the highest entropy in a forward pass. 1: all
    tokens."""

    @model_validator(mode="after")
    def _loss_fits(self) -> Self:
        if self.delta is not None and self.delta <= 1 + (self.epsilon_high or self.epsilon):
            raise ValueError(
                f"delta={self.delta:g} must be above 1 + epsilon_high, the bound of the "
                "clipped ratio"
            )
        return self

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each valid, but probably unintended combination of settings."""
        level, loss = self.importance_sampling_level, self.loss_type
        both = f"recipe.grpo.importance_sampling_level={level!r} with loss_type={loss!r}"
        if level == "sequence" and loss in ("bnpo", "dr_grpo", "dapo", "cispo"):
            yield (
                f"{both} weights each completion by its length. GSPO uses loss_type='grpo', which "
                "gives all completions the same weight"
            )
        if level == "sequence" and loss == "vespo":
            yield f"{both}: the level has no effect, because VESPO weights whole completions"
        if level == "token" and loss == "luspo":
            yield (
                f"{both} multiplies each token's loss by the completion's length. LUSPO uses "
                "importance_sampling_level='sequence'"
            )


class RolloutRecipe(Request):
    """Generation of completions, and their layout in training."""

    fast_inference: bool | Literal["auto"] = "auto"
    """Inference engine. `"auto"` and `false`: generate with the training weights. `true` (vLLM) is
    not available yet."""
    shared_prompt: bool | Literal["auto"] = "auto"
    """Compute a group's prompt once in the training forward pass instead of once per completion.
    `"auto"`: if the smaller batch is worth the extra work."""

    @field_validator("fast_inference")
    @classmethod
    def _no_vllm(cls, value: bool | Literal["auto"]) -> bool | Literal["auto"]:
        if value is True:
            raise ValueError(
                "true means vLLM, which is not available yet: use 'auto', which generates with the "
                "training weights"
            )
        return value
