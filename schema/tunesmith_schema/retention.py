"""Which checkpoints to sample from are kept: the same rule on a worker's disk and in storage."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .recipe import Recipe


def checkpoints_to_drop(valid_losses: Mapping[int, float | None], recipe: Recipe) -> list[int]:
    """Steps, ascending. `valid_losses`: of every checkpoint there is, by step; None: not known."""
    limit, every = recipe.save_total_limit, recipe.keep_every
    if limit is None:
        return []
    steps = sorted(valid_losses)
    kept = {*steps[-limit:], *(step for step in steps if every and step % every == 0)}
    known = {s: v for s, v in valid_losses.items() if v is not None and math.isfinite(v)}
    if known:
        kept.add(min(known, key=lambda step: (known[step], step)))
    return [step for step in steps if step not in kept]
