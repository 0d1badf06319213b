"""Choose the optimiser for a training precision, and put the weights to save into the model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tunesmith_schema import Precision

from .eight_bit import StochasticAdamW
from .split_master import SplitMasterAdamW

Untyped = Any  # Any: transformers is not typed
OptimizerAndArguments = tuple[type[torch.optim.Optimizer], dict[str, Any]]  # Any: its arguments

_BETAS_EPS: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}  # the Trainer's default values
BYTES: dict[Precision, tuple[int, int]] = {
    "fp32": (12, 4),
    "bf16_split_master": (12, 2),
    "bf16_sr8": (4, 2),
    "bf16": (6, 2),
}
"""Bytes per parameter in full tuning: first the bytes of weight and optimiser state together, then
the bytes of the gradient."""


def optimizer_for(
    precision: Precision, *, full: bool, learning_rate: float, seed: int
) -> OptimizerAndArguments | None:
    """Return the Trainer's `optimizer_cls_and_kwargs`, or None to use the Trainer's AdamW."""
    if not full or precision in ("fp32", "bf16"):
        return None
    if precision == "bf16_split_master":
        return SplitMasterAdamW, {"lr": learning_rate, **_BETAS_EPS}
    return StochasticAdamW, {"lr": learning_rate, "seed": seed, **_BETAS_EPS}


def describe_precision(precision: Precision) -> str:
    """Describe the precision of full tuning in one line for the user."""
    state, gradient = BYTES[precision]
    line = (
        f"Full tuning in {precision}: weights and AdamW state take {state} bytes per parameter, "
        f"the gradient takes {gradient}"
    )
    if precision == "bf16":
        line += (
            ". Plain bf16 loses small updates to rounding and ends at a higher loss; "
            "recipe.precision='bf16_split_master' loses no updates"
        )
    return line


def rounded_weights(optimizer: Untyped) -> AbstractContextManager[None]:
    """Within this block, the model has the weights that must be saved.

    If the optimiser keeps fp32 copies of the weights (masters), the block replaces the model's
    weights by the masters, rounded to bf16 as torch rounds. If the optimiser keeps no masters, the
    block changes nothing."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # unwrap accelerate's optimizer
    if isinstance(optimizer, SplitMasterAdamW):
        return optimizer.rounded_to_even()
    return nullcontext()
