"""Rule that selects the fastest micro-batch layout of a run.

All layouts train the same rows with the same loss, but differ in speed and memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tunesmith_schema import Recipe
from tunesmith_worker.rundir.plan import Device

Kind = Literal["padded", "padding_free", "packed"]

SHORT_RUN = 40
"""Runs with fewer steps always use the layout `padding_free`, because the speed of a short run
matters little."""
PACKED_TOKENS = {"cpu": 4096, "gpu": 16384}
"""Maximum number of tokens in a packed micro-batch.

On a CPU, micro-batches above 4096 tokens are no faster (docs/contributing/log).
"""
PADDED_TOKENS = 1024
"""Maximum tokens of a micro-batch for which padding is faster on a CPU."""
EQUAL_TOKENS = 128
"""Maximum tokens of a micro-batch for which padding is faster than packing on a CPU, if all rows
have the same length."""
PADDED_WORK = 8e7
"""Maximum of (padding positions in a micro-batch) x (parameters of the model) for which padding is
faster on a CPU."""
MOST_PADDING = 2.0
"""Maximum ratio of the longest row's length to the mean row length; a higher ratio would raise the
peak memory."""
_SIMULATED_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    kind: Kind
    """Arrangement of the examples of a micro-batch. `padded`: the examples are padded to equal
    length, and the model's own layers compute them. `padding_free`: the examples are concatenated;
    the micro-batch has about `rows` examples. `packed`: the examples are concatenated; the
    micro-batch has at most `tokens` tokens."""
    rows: int | None = None
    """Number of examples in a micro-batch; None if packed."""
    tokens: int | None = None
    """Maximum tokens of a micro-batch; None unless packed."""

    def divided(self, parts: int) -> Layout:
        """Return this layout with the micro-batch size divided by `parts`; the smallest size is one
        example."""
        if parts == 1:
            return self
        rows = None if self.rows is None else -(-self.rows // parts)
        return replace(self, rows=rows, tokens=self.tokens and -(-self.tokens // parts))


@dataclass(frozen=True, kw_only=True)
class LayoutPlan:
    layouts: dict[str, Layout]
    """Layouts under their names.

    A run uses the first layout, unless plan.json names another layout or memory is short.
    """
    reason: str
    """Reason why the first layout was chosen."""
    slots_per_token: float = 1.0
    """Number of token positions divided by number of data tokens, if micro-batches are padded."""

    @property
    def first(self) -> str:
        return next(iter(self.layouts))


def plan_layouts(
    recipe: Recipe,
    stock_attention: str | None,
    *,
    mixed_rows: str | None = None,
    patched: bool,
    lengths: Sequence[int],
    rows: int,
    passes: int,
    total_steps: int,
    parameters: int,
    device: Device,
) -> LayoutPlan:
    """Choose the layout of batches in a run: padded, padding-free or packed.

    `stock_attention`: reason why our attention cannot run, or None. `mixed_rows`: reason why packed
    rows would affect each other, or None. `patched`: True if our kernels are patched into a layer.
    `lengths`: number of tokens in each data row. `rows`: number of examples per micro-batch.
    `passes`: number of micro-batches per step. `parameters`: number of parameters of the base
    model.

    The thresholds for the layout were fitted to 30 measured combinations of model size and row
    length on a CPU, and tested on 36 other combinations (docs/contributing/log). The thresholds
    were not tested on a GPU."""
    padded = Layout(kind="padded", rows=rows)
    free = Layout(kind="padding_free", rows=rows)
    if recipe.packing is True and mixed_rows is not None:
        return _only("padded", padded, mixed_rows)
    if recipe.packing is True:
        return _only("packing", free, "recipe.packing is true: rows are packed before training")
    if not patched:
        return _only("padded", padded, "recipe.patches leaves the layers unchanged")
    if stock_attention is not None:
        return _only("padded", padded, stock_attention)
    if recipe.packing is False:
        return _only("padding_free", free, "recipe.packing is false")
    if total_steps < SHORT_RUN:
        return _only("padding_free", free, f"packing saves little time in {total_steps} steps")
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    most = min(PACKED_TOKENS["gpu" if device.is_gpu else "cpu"], rows * passes * longest)
    padding = padded_slots_per_token(lengths, rows, rows * passes)
    paddable = (
        not device.is_gpu
        and rows * mean <= PADDED_TOKENS
        and (padding - 1) * rows * mean * parameters <= PADDED_WORK
        and longest <= MOST_PADDING * mean
    )
    small_and_equal = paddable and padding == 1.0 and rows * mean <= EQUAL_TOKENS
    packable = (
        recipe.per_device_train_batch_size == "auto"
        and passes > 1
        and rows * mean < most
        and not small_and_equal
    )
    layouts = {"padding_free": free, "padded": padded}
    if packable:
        packed = Layout(kind="packed", tokens=most)
        layouts = {"packed": packed, **layouts}
        reason = f"fewer, larger micro-batches of up to {most:,} tokens"
    elif paddable:
        layouts = {"padded": padded, **layouts}
        reason = f"padding is faster for micro-batches of {rows * mean:,.0f} tokens"
    else:
        reason = f"rows of {mean:,.0f} tokens are faster without padding"
    reason = f"{reason} ({padding:.2f} positions per token if padded)"
    return LayoutPlan(layouts=layouts, reason=reason, slots_per_token=padding)


def padded_slots_per_token(lengths: Sequence[int], rows: int, rows_per_step: int) -> float:
    """Estimate the number of token positions per data token in padded micro-batches. The estimate
    uses steps with randomly chosen rows."""
    draw = random.Random(0)
    filled = tokens = 0
    for _ in range(_SIMULATED_STEPS):
        step = draw.choices(lengths, k=rows_per_step)
        tokens += sum(step)
        for start in range(0, rows_per_step, rows):
            batch = step[start : start + rows]
            filled += max(batch) * len(batch)
    return filled / tokens


def _only(name: str, layout: Layout, reason: str) -> LayoutPlan:
    return LayoutPlan(layouts={name: layout}, reason=reason)
