"""How the rows of an optimiser step are laid out into micro-batches: the candidates.

Any layout trains the same rows with the same loss; they differ in speed and memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tunesmith_schema import Recipe
from tunesmith_worker.rundir.plan import Device

Kind = Literal["padded", "padding_free", "packed"]

TRIAL_STEPS = 40
"""A run that is shorter is over before a measured choice pays."""
MOST_PADDING = 2.0
"""Slots per token from which padding is not tried: stock layers are not that much faster."""
PACKED_TOKENS = {"cpu": 4096, "gpu": 16384}
"""Most tokens of a packed micro-batch; larger ones are no faster on a CPU
(docs/contributing/log)."""
COMPILED = "padded_compiled"
PAYS_AFTER = 60
"""Compiling is tried when the rest of the run takes so many times as long: it then costs less than
a fiftieth if it gains nothing."""
_SIMULATED_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    kind: Kind
    """`padded`: side by side, on the model's own layers. `padding_free`: end to end, by rows.
    `packed`: end to end, by tokens."""
    rows: int | None = None
    """Examples in a micro-batch; not when packed."""
    tokens: int | None = None
    """At most so many in a micro-batch; only when packed."""
    compiled: bool = False
    """The model's own layers through torch.compile; only when padded."""

    def divided(self, parts: int) -> Layout:
        """The same with micro-batches of about that part of the size, but at least one example."""
        if parts == 1:
            return self
        rows = None if self.rows is None else -(-self.rows // parts)
        return replace(self, rows=rows, tokens=self.tokens and -(-self.tokens // parts))


@dataclass(frozen=True, kw_only=True)
class LayoutPlan:
    candidates: dict[str, Layout]
    """By name; the first is the one to begin with, and to keep when nothing is faster."""
    slots_per_token: dict[str, float]
    """What each computes for a token of the data, padding included."""
    reason: str
    """Why there is one candidate, or why the others are tried."""

    @property
    def first(self) -> str:
        return next(iter(self.candidates))

    @property
    def layouts(self) -> dict[str, Layout]:
        """The candidates, and the padded one compiled: tried where that would pay."""
        padded = self.candidates.get("padded")
        if padded is None or len(self.candidates) == 1:
            return self.candidates
        return {**self.candidates, COMPILED: replace(padded, compiled=True)}

    def compiling_pays(
        self, speeds: dict[str, float], seconds_left: float, compile_seconds: float
    ) -> bool:
        """`speeds`: tokens a second of each candidate. A tenth is the most that compiling gains."""
        near = speeds.get("padded", 0.0) * 1.1 >= max(speeds.values())
        return near and COMPILED in self.layouts and seconds_left >= PAYS_AFTER * compile_seconds


def plan_layouts(
    recipe: Recipe,
    stock_attention: str | None,
    *,
    patched: bool,
    lengths: Sequence[int],
    rows: int,
    passes: int,
    total_steps: int,
    device: Device,
) -> LayoutPlan:
    """`stock_attention`: why rows cannot stand end to end, if so. `patched`: any layer is ours.
    `lengths`: tokens of each row of the data. `rows`, `passes`: examples of a micro-batch and
    micro-batches of a step."""
    padded = Layout(kind="padded", rows=rows)
    free = Layout(kind="padding_free", rows=rows)
    if recipe.packing is True:
        return _only("packing", free, "recipe.packing: sequences are filled beforehand")
    if not patched:
        return _only("padded", padded, "the stock trainer's, as recipe.patches has no layer of us")
    if stock_attention is not None:
        return _only("padded", padded, stock_attention)
    if recipe.packing is False:
        return _only("padding_free", free, "recipe.packing is false")
    if total_steps < TRIAL_STEPS:
        return _only(
            "padding_free", free, f"{total_steps} steps are over before a measured choice pays"
        )
    candidates, ratios = {"padding_free": free}, {"padding_free": 1.0}
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    most = min(PACKED_TOKENS["gpu" if device.is_gpu else "cpu"], rows * passes * longest)
    if recipe.per_device_train_batch_size == "auto" and passes > 1 and rows * mean < most:
        candidates["packed"] = Layout(kind="packed", tokens=most)
        ratios["packed"] = 1.0
    padding = padded_slots_per_token(lengths, rows, rows * passes)
    # One long row among short ones makes a padded batch of it many times larger than any other.
    if padding <= MOST_PADDING and rows * longest <= MOST_PADDING * rows * mean + longest:
        candidates["padded"], ratios["padded"] = padded, padding
    reason = f"measured: padded rows would fill {padding:.2f} slots a token"
    return LayoutPlan(candidates=candidates, slots_per_token=ratios, reason=reason)


def padded_slots_per_token(lengths: Sequence[int], rows: int, rows_per_step: int) -> float:
    """Slots that random steps of the data fill when padded, over their tokens."""
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
    return LayoutPlan(candidates={name: layout}, slots_per_token={name: 1.0}, reason=reason)
