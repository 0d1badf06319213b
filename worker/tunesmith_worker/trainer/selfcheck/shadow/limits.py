"""Limits of the comparison with plain torch: tolerance, memory, and unsupported models."""

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

MEMORY_SHARE = 0.5
"""Share of free memory that plain torch may take."""


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
    """Keep the model in eval mode within the block, although the Trainer calls `train()`."""
    model.eval()
    model.__dict__["train"] = lambda mode=True: model
    try:
        yield
    finally:
        del model.__dict__["train"]


def bytes_needed(model: Untyped, longest: int) -> int:
    """Predict the memory of plain torch: fp32 gradients, and activations of the longest row."""
    config = model.config.get_text_config()
    trained: int = sum(p.numel() for p in model.parameters() if p.requires_grad)
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    layers = int(getattr(config, "num_hidden_layers", 0) or 0)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    vocabulary = int(getattr(config, "vocab_size", 0) or 0)
    activations = longest * (layers * (40 * hidden + 2 * heads * longest) + 4 * vocabulary)
    return 4 * (3 * trained + activations)
