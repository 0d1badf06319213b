"""Early stopping settings, and the metric by which evaluations are compared."""

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
    """Metric to watch. `"auto"` is `valid_loss` (lower is better), or `valid_reward` with
    reinforcement."""
    patience: int = Field(default=3, ge=1, le=1000)
    """Stop the training after this many consecutive evaluations without an improvement.
    `eval_steps` sets the interval between evaluations."""
    min_delta: float = Field(default=0.0, ge=0.0, le=1e6, allow_inf_nan=False)
    """An evaluation counts as an improvement if its metric is better than the metric at the last
    improvement, by more than `min_delta`. A NaN metric is never an improvement."""


def selection_metric(rule: EarlyStoppingRecipe | None, method: MethodName) -> Metric:
    """Return the metric by which evaluations are compared."""
    if rule is not None and rule.metric != "auto":
        return rule.metric
    return "valid_reward" if method == "reinforcement" else "valid_loss"
