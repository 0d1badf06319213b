"""Which weights a rollout decodes with, and how many rows at a time: by what fits in memory.

Closed form, no model runs. The choice goes into plan.json and is taken again on resume.
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
_USABLE_SHARE = 0.8
"""Of free memory that is counted on."""


class RolloutDoesNotFit(RolloutError):
    """Not even one row of the asked length fits into free memory."""


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    weights: Layout
    max_rows: int
    """Completions that are drawn at the same time."""
    reason: str = "given"
    copy_bytes: int = 0
    """Of a merged copy of the weights, whether it is made or not."""
    row_bytes: int = 0
    """Keys and values of one row of the greatest length, its prompt included."""
    free_bytes: int = 0

    def figures(self) -> dict[str, JsonValue]:
        """For a choice's figures in plan.json."""
        return {
            "max_rows": self.max_rows,
            "copy_bytes": self.copy_bytes,
            "row_bytes": self.row_bytes,
            "free_bytes": self.free_bytes,
        }


def plan_rollout(
    model: Untyped, *, rows: int, prompt_tokens: int, max_tokens: int, free: int
) -> RolloutPlan:
    """`rows`: completions wanted at a time, of prompts up to `prompt_tokens` and completions up to
    `max_tokens`; `free`: bytes on the model's device.

    A merged copy is taken where it fits beside a quarter of the rows: it decodes faster, and fewer
    rows at a time cost less than slower products. Raises UnsupportedModel and RolloutDoesNotFit.
    """
    found = read_architecture(model)
    usable = int(free * _USABLE_SHARE)
    copy, row = _copy_bytes(found), _row_bytes(found, prompt_tokens + max_tokens)
    wanted = max(1, min(rows, MAX_ROWS))
    needed = -(-wanted // 4) * row
    quantised = _is_quantised(found)
    if usable >= copy + needed or (quantised and usable >= copy + row):
        layout: Layout = "merged"
        left = usable - copy
        reason = f"a merged copy takes {copy >> 20:,} MiB and fits"
    elif quantised:
        raise RolloutDoesNotFit(
            f"a base model in 4 bits is rolled out from a widened copy of {copy:,} bytes, and "
            f"{usable:,} are free for it: use a larger device or a smaller model"
        )
    else:
        layout, left = "in_place", usable
        reason = (
            f"a merged copy would take {copy >> 20:,} MiB, and {usable >> 20:,} MiB are free: the "
            "adapter is folded into the training weights meanwhile"
        )
    fitting = left // max(1, row)
    if fitting < 1:
        raise RolloutDoesNotFit(
            f"one completion of {prompt_tokens} + {max_tokens} tokens needs {row:,} bytes of keys "
            f"and values, and {left:,} are free: shorten max_completion_length or the prompts"
        )
    return RolloutPlan(
        weights=layout,
        max_rows=int(min(wanted, fitting)),
        reason=reason,
        copy_bytes=copy,
        row_bytes=row,
        free_bytes=free,
    )


def _copy_bytes(model: Architecture) -> int:
    modules = [one for s in model.layers for one in (*s.qkv, s.out, *s.gate_up, s.down)]
    total = model.head.weight.numel()
    for module in modules:
        weight = read_projection(module).weight
        shape = weight.shape
        total += shape[0] * shape[1]
    return int(total) * model.dtype.itemsize


def _row_bytes(model: Architecture, tokens: int) -> int:
    size = cache_dtype(model).itemsize
    each = sum(2 * one.shape.kv_heads * one.shape.head_dim for one in model.layers)
    logits = 4 * model.vocabulary * 4  # fp32, and what sampling makes of them
    return each * tokens * size + logits


def _is_quantised(model: Architecture) -> bool:
    return isinstance(read_projection(model.layers[0].qkv[0]).weight, NF4Weight)
