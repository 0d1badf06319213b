"""Plan the memory of a rollout: the layout of the weights, and the largest number of rows.

The plan is computed from sizes, without running the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from tunesmith_kernels.nf4_types import NF4Weight
from tunesmith_worker.engine.patches.projections import read_projection

from .architecture import Architecture, read_architecture
from .decoder import cache_dtype
from .protocol import RolloutError
from .weights import Layout

Untyped = Any  # Any: transformers is not typed

MAX_ROWS = 256
USABLE_SHARE = 0.8
"""Fraction of the free memory that a plan may use."""


class RolloutDoesNotFit(RolloutError):
    """Raised if the free memory is too small for one row of the requested length."""


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    weights: Layout
    max_rows: int
    """Number of completions that are decoded together."""
    reason: str = "set by the caller"
    copy_bytes: int = 0
    """Size of a merged copy of the weights in bytes, even if the plan uses no merged copy."""
    row_bytes: int = 0
    """Bytes for the keys, values and logits of one row of maximum length, including its prompt."""
    row_tokens: int = 0
    """Maximum number of tokens of a row, including its prompt; 0 if unknown."""
    free_bytes: int = 0

    def figures(self) -> dict[str, JsonValue]:
        """Return the numbers of the rollout plan, as JSON values."""
        return {
            "max_rows": self.max_rows,
            "copy_bytes": self.copy_bytes,
            "row_bytes": self.row_bytes,
            "row_tokens": self.row_tokens,
            "free_bytes": self.free_bytes,
        }


def plan_rollout(
    model: Untyped, *, rows: int, prompt_tokens: int, max_tokens: int, free: int
) -> RolloutPlan:
    """Plan a rollout that needs at most `free` bytes on the model's device.

    At most `rows` completions run at a time. Prompts have up to `prompt_tokens` tokens, completions
    up to `max_tokens`.

    The plan uses a merged copy of the weights if the copy and a quarter of the rows fit into memory
    together. A merged copy makes matrix products faster, which saves more time than a larger batch.
    Raises UnsupportedModel and RolloutDoesNotFit.
    """
    architecture = read_architecture(model)
    usable = int(free * USABLE_SHARE)
    copy = _copy_bytes(architecture)
    row = _row_bytes(architecture, prompt_tokens + max_tokens)
    rows = max(1, min(rows, MAX_ROWS))
    needed = -(-rows // 4) * row
    quantised = _is_quantised(architecture)
    if usable >= copy + needed or (quantised and usable >= copy + row):
        layout: Layout = "merged"
        left = usable - copy
        reason = f"a merged copy of the weights fits: {copy >> 20:,} MiB"
    elif quantised:
        raise RolloutDoesNotFit(
            f"generation with a 4-bit base model needs a dequantized copy of {copy:,} bytes, but "
            f"only {usable:,} bytes are free: use a larger device or a smaller model"
        )
    else:
        layout, left = "in_place", usable
        reason = (
            f"a merged copy of the weights needs {copy >> 20:,} MiB, but only {usable >> 20:,} MiB "
            "are free: the adapter is added to the training weights during generation"
        )
    fitting = left // max(1, row)
    if fitting < 1:
        raise RolloutDoesNotFit(
            f"one completion of {prompt_tokens} prompt and {max_tokens} completion tokens needs "
            f"{row:,} bytes for its keys and values, but only {left:,} bytes are free: use shorter "
            "completions or prompts"
        )
    return RolloutPlan(
        weights=layout,
        max_rows=int(min(rows, fitting)),
        reason=reason,
        copy_bytes=copy,
        row_bytes=row,
        row_tokens=prompt_tokens + max_tokens,
        free_bytes=free,
    )


def _copy_bytes(model: Architecture) -> int:
    modules = [m for s in model.layers for m in (*s.qkv, s.out, *s.gate_up, s.down)]
    total = model.head.weight.numel()
    for module in modules:
        weight = read_projection(module).weight
        shape = weight.shape
        total += shape[0] * shape[1]
    return int(total) * model.dtype.itemsize


def _row_bytes(model: Architecture, tokens: int) -> int:
    size = cache_dtype(model).itemsize
    per_token = sum(2 * s.shape.kv_heads * s.shape.head_dim for s in model.layers)
    logits = 4 * model.vocabulary * 4  # fp32 logits, and sampling's tensors of the same size
    return per_token * tokens * size + logits


def _is_quantised(model: Architecture) -> bool:
    return isinstance(read_projection(model.layers[0].qkv[0]).weight, NF4Weight)
