"""Candidate layouts of an optimiser step's rows in micro-batches.

Every layout trains the same rows with the same loss; speed and memory differ.
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
"""Fewest steps of a run for which measuring layouts is worthwhile."""
MOST_PADDING = 2.0
"""Maximum slots per token for which padding is tried: with more, stock layers are slower."""
PACKED_TOKENS = {"cpu": 4096, "gpu": 16384}
"""Most tokens of a packed micro-batch; larger ones gain nothing on CPU (docs/contributing/log)."""
COMPILED = "padded_compiled"
PAYS_AFTER = 60
"""Compiling is tried if the rest of the run takes this many times as long as compiling: it then
costs less than 2 % if it gains nothing."""
_SIMULATED_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    kind: Kind
    """`padded`: with padding, on the model's own layers. `padding_free`: concatenated, split by
    number of rows. `packed`: concatenated, split by tokens."""
    rows: int | None = None
    """Examples in a micro-batch; None if packed."""
    tokens: int | None = None
    """Most tokens in a micro-batch; only if packed."""
    compiled: bool = False
    """True if the model's own layers run through torch.compile; only if padded."""

    def divided(self, parts: int) -> Layout:
        """Return this layout with micro-batches of 1/`parts` of the size, at least one example."""
        if parts == 1:
            return self
        rows = None if self.rows is None else -(-self.rows // parts)
        return replace(self, rows=rows, tokens=self.tokens and -(-self.tokens // parts))


@dataclass(frozen=True, kw_only=True)
class LayoutPlan:
    candidates: dict[str, Layout]
    """Layouts by name; the first is used at the start, and kept if no other is faster."""
    slots_per_token: dict[str, float]
    """Computed slots per data token of each candidate, padding included."""
    reason: str
    """Why there is one candidate, or why several are measured."""

    @property
    def first(self) -> str:
        return next(iter(self.candidates))

    @property
    def layouts(self) -> dict[str, Layout]:
        """The candidates, plus the compiled padded layout, which is tried if worthwhile."""
        padded = self.candidates.get("padded")
        if padded is None or len(self.candidates) == 1:
            return self.candidates
        return {**self.candidates, COMPILED: replace(padded, compiled=True)}

    def compiling_pays(
        self, speeds: dict[str, float], seconds_left: float, compile_seconds: float
    ) -> bool:
        """Return True if compiling, which gains at most 10 %, pays off. `speeds`: tokens/s."""
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
    """Choose the candidate layouts of a run.

    `stock_attention`: why rows cannot be concatenated, or None. `patched`: any layer is patched.
    `lengths`: tokens of each row of the data. `rows`: examples per micro-batch. `passes`:
    micro-batches per step."""
    padded = Layout(kind="padded", rows=rows)
    free = Layout(kind="padding_free", rows=rows)
    if recipe.packing is True:
        return _only("packing", free, "recipe.packing is true: rows are packed before training")
    if not patched:
        return _only("padded", padded, "recipe.patches leaves the layers stock")
    if stock_attention is not None:
        return _only("padded", padded, stock_attention)
    if recipe.packing is False:
        return _only("padding_free", free, "recipe.packing is false")
    if total_steps < TRIAL_STEPS:
        return _only("padding_free", free, f"{total_steps} steps are too few to measure layouts")
    candidates, ratios = {"padding_free": free}, {"padding_free": 1.0}
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    most = min(PACKED_TOKENS["gpu" if device.is_gpu else "cpu"], rows * passes * longest)
    if recipe.per_device_train_batch_size == "auto" and passes > 1 and rows * mean < most:
        candidates["packed"] = Layout(kind="packed", tokens=most)
        ratios["packed"] = 1.0
    padding = padded_slots_per_token(lengths, rows, rows * passes)
    # One long row among short rows makes its padded batch many times larger than the others.
    if padding <= MOST_PADDING and rows * longest <= MOST_PADDING * rows * mean + longest:
        candidates["padded"], ratios["padded"] = padded, padding
    reason = f"measured: padded rows take {padding:.2f} slots per token"
    return LayoutPlan(candidates=candidates, slots_per_token=ratios, reason=reason)


def padded_slots_per_token(lengths: Sequence[int], rows: int, rows_per_step: int) -> float:
    """Estimate the padded slots per token from random steps of the data."""
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
