"""Tolerances of the comparison with plain torch, and models that this comparison does not
support."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tunesmith_worker.trainer.selfcheck.check_context import (
    ReinforcementContext,
    SupervisedContext,
)
from tunesmith_worker.trainer.selfcheck.row_lengths import stable_length

from .compare import COARSE, FP32, FP32_GPU, Tolerance

Untyped = Any  # Any: transformers is not typed


def tolerance_of(context: SupervisedContext | ReinforcementContext) -> Tolerance:
    if context.load_plan.precision != "fp32" or context.recipe.quantization == "int8":
        return COARSE
    return FP32_GPU if context.trainer.args.device.type == "cuda" else FP32


def changes_with_length(config: Untyped, longest: int) -> bool:
    """Return True if the frequencies of RoPE depend on the longest row of a batch."""
    limit = stable_length(config)
    return limit is not None and longest > limit


@contextmanager
def stays_in_eval(model: Untyped) -> Iterator[None]:
    """Within this block, keep the model in eval mode, even when the Trainer calls `train()`."""
    model.eval()
    model.__dict__["train"] = lambda mode=True: model
    try:
        yield
    finally:
        del model.__dict__["train"]


@contextmanager
def trained_only(model: Untyped, tensors: frozenset[str] | None) -> Iterator[None]:
    """Within this block, compute gradients of only some tensors; None means all tensors."""
    frozen = [
        parameter
        for name, parameter in model.named_parameters()
        if tensors is not None and parameter.requires_grad and name not in tensors
    ]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
