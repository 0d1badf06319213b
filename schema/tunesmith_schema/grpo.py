"""Settings of reinforcement tuning by GRPO (https://arxiv.org/abs/2402.03300): `recipe.grpo` and
`recipe.rollout`, with TRL's names and meanings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .base import Request

ImportanceSampling = Literal[
    "auto", "off", "sequence_mask", "sequence_truncate", "token_mask", "token_truncate"
]
LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


class GRPORecipe(Request):
    """Group relative policy optimisation (GRPO): sample a group of completions per prompt, and
    raise the likelihood of completions with a reward above the group's mean."""

    num_generations: Annotated[int, Field(ge=2, le=1024)] | Literal["auto"] = "auto"
    """Group size: the number of completions per prompt; `"auto"` is 8."""
    prompts_per_step: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Number of prompts per optimiser step; `"auto"` is 16, or fewer if the data set has fewer
    prompts."""
    max_completion_length: Annotated[int, Field(ge=1, le=1_048_576)] | Literal["auto"] = "auto"
    """Maximum number of tokens in a completion. `"auto"` is 512, or less if the longest prompt
    leaves fewer tokens in the model's context."""
    temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    """Sampling temperature. Training computes log-probs at the same temperature."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling: sample from the smallest set of tokens whose probability sums to at least
    this; 1 allows all tokens."""
    top_k: int = Field(default=0, ge=0, le=10_000_000)
    """Sample only from this many of the most likely tokens; 0 allows all tokens."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Sample only from tokens whose probability is at least this share of the highest token
    probability; None allows all tokens."""
    loss_type: LossType = "dapo"
    """Variant of the loss, which determines how token losses are aggregated. `cispo`, `sapo`,
    `luspo` and `vespo` also change the loss of each token."""
    beta: float = Field(default=0.0, ge=0.0, le=1e6, allow_inf_nan=False)
    """Weight of the KL divergence from the reference model, which is the model before training.
    `beta=0` skips the KL term and the reference model's forward pass."""
    epsilon: float = Field(default=0.2, ge=0.0, le=1e6, allow_inf_nan=False)
    """Lower clipping bound: the probability ratio between the current policy and the sampling
    policy is clipped to at least 1 - `epsilon`."""
    epsilon_high: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)] | None = None
    """Upper clipping bound: the probability ratio is clipped to at most 1 + `epsilon_high`, or to
    at most `epsilon_high` with `cispo`. `epsilon_high=None` means the value of `epsilon`."""
    delta: Annotated[float, Field(gt=1.0, le=1e6, allow_inf_nan=False)] | None = None
    """Upper bound of the probability ratio in the unclipped term of the loss (two-sided clipping);
    None sets no bound."""
    num_iterations: int = Field(default=1, ge=1, le=64)
    """Number of optimiser steps on the same completions."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Compute one probability ratio per token (`"token"`) or per completion (`"sequence"`). The
    ratio of a completion is the geometric mean of its token ratios. `"sequence"` with
    `loss_type="grpo"` is GSPO (https://arxiv.org/abs/2507.18071)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the rewards in the group (`"group"`) or in the
    step (`"batch"`), or do not divide (`"none"`)."""
    mask_truncated_completions: bool = False
    """Exclude completions that reached `max_completion_length` from the loss."""
    top_entropy_quantile: float = Field(default=1.0, gt=0.0, le=1.0)
    """Train only on the tokens with the highest entropy: this share of each forward pass's tokens.
    1 trains all tokens."""

    @model_validator(mode="after")
    def _loss_fits(self) -> Self:
        if self.delta is not None and self.delta <= 1 + (self.epsilon_high or self.epsilon):
            raise ValueError(
                f"delta={self.delta:g} must be above 1 + epsilon_high, the upper clipping bound of "
                "the probability ratio"
            )
        return self

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each valid but probably unintended combination of settings."""
        level, loss = self.importance_sampling_level, self.loss_type
        both = f"recipe.grpo.importance_sampling_level={level!r} with loss_type={loss!r}"
        if level == "sequence" and loss in ("bnpo", "dr_grpo", "dapo", "cispo"):
            yield (
                f"{both} gives longer completions more weight. For equal weights (GSPO), set "
                "recipe.grpo.loss_type='grpo'"
            )
        if level == "sequence" and loss == "vespo":
            yield f"{both}: the level has no effect, because VESPO always weights whole completions"
        if level == "token" and loss == "luspo":
            yield (
                f"{both} differs from LUSPO: it multiplies each token's loss by the completion's "
                "length. For LUSPO, set recipe.grpo.importance_sampling_level='sequence'"
            )


class RolloutRecipe(Request):
    """Settings for generating completions and for training on them."""

    fast_inference: bool | Literal["auto"] = "auto"
    """Engine that generates completions. `true`: only vLLM; the run fails at its start if vLLM is
    not installed or cannot serve the model. `false`: never vLLM. `"auto"`: vLLM on a GPU if it is
    installed, else our own engine, else transformers."""
    importance_sampling: ImportanceSampling = "auto"
    """Correction for a rollout engine whose log-probs differ from the trainer's: weight each token
    or completion by the probability ratio trainer / engine. Modes with `_truncate` limit ratios to
    3. Modes with `_mask` exclude tokens or completions with ratios above 3 from the loss. `"auto"`
    is `off` without vLLM. With vLLM, `"auto"` is `sequence_mask`, or `token_truncate` with
    `loss_type="vespo"`. For long completions, `token_mask` excludes fewer tokens than
    `sequence_mask`."""
    shared_prompt: bool | Literal["auto"] = "auto"
    """Compute a group's prompt once in the training forward pass instead of once per completion.
    `"auto"` computes the prompt once if this is expected to save time."""
