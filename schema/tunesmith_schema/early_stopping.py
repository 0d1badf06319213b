"""`recipe.early_stopping`, and by which metric it and `recipe.keep` judge."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Request

MethodName = Literal["supervised", "reinforcement"]
Metric = Literal["valid_loss", "valid_mean_token_accuracy", "valid_reward"]
HIGHER_IS_BETTER = frozenset({"valid_mean_token_accuracy", "valid_reward"})


class EarlyStoppingRecipe(Request):
    """End the training once the evaluations gain nothing any more."""

    metric: Metric | Literal["auto"] = "auto"
    """What is judged: `valid_loss` (lower is better), `valid_mean_token_accuracy` (higher is) or,
    with reinforcement, `valid_reward` (higher is). `"auto"`: `valid_loss`, or `valid_reward`."""
    patience: int = Field(default=3, ge=1, le=1000)
    """Evaluations in a row without a gain that end the training; `eval_steps` says how far apart
    they are."""
    min_delta: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """An evaluation is a gain when it is better by more than this than the last one that was, or is
    the first. One that is no number is never a gain."""


def judged_by(rule: EarlyStoppingRecipe | None, method: MethodName) -> Metric:
    """The metric that makes one evaluation better than another."""
    if rule is not None and rule.metric != "auto":
        return rule.metric
    return "valid_reward" if method == "reinforcement" else "valid_loss"
