"""`recipe.early_stopping`, and the metric by which it and `recipe.keep` compare evaluations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Request

MethodName = Literal["supervised", "reinforcement"]
Metric = Literal["valid_loss", "valid_mean_token_accuracy", "valid_reward"]
HIGHER_IS_BETTER = frozenset({"valid_mean_token_accuracy", "valid_reward"})


class EarlyStoppingRecipe(Request):
    """Stop the training when the evaluations no longer improve."""

    metric: Metric | Literal["auto"] = "auto"
    """Metric to watch: `valid_loss` (lower is better), `valid_mean_token_accuracy` (higher is
    better) or, with reinforcement, `valid_reward` (higher is better). `"auto"`: `valid_loss`, with
    reinforcement `valid_reward`."""
    patience: int = Field(default=3, ge=1, le=1000)
    """Number of consecutive evaluations without an improvement after which the training stops.
    `eval_steps` sets the interval of the evaluations."""
    min_delta: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Least improvement: an evaluation counts if its metric is better than at the last improvement
    by more than this value. The first evaluation always counts; NaN never counts."""


def selection_metric(rule: EarlyStoppingRecipe | None, method: MethodName) -> Metric:
    """Return the metric by which evaluations are compared."""
    if rule is not None and rule.metric != "auto":
        return rule.metric
    return "valid_reward" if method == "reinforcement" else "valid_loss"
