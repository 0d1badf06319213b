"""What is kept of a run on its way: the same rules on a worker's disk and in storage."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from .recipe import Recipe

NEWEST_RESUME_POINTS = 2
"""The newest, and the one before in case that is damaged."""


def stays(step: int, keep_every: int | None) -> bool:
    """Whether `recipe.keep_every` keeps what was made at this step."""
    return keep_every is not None and step % keep_every == 0


def resume_points_to_keep(steps: Collection[int], keep_every: int | None) -> set[int]:
    """Of the steps that have one."""
    newest = sorted(steps)[-NEWEST_RESUME_POINTS:]
    return {*newest, *(step for step in steps if stays(step, keep_every))}


def badness(metrics: Mapping[str, float | None]) -> float | None:
    """By which the best checkpoint is known, the lower the better: `valid_loss`, or `valid_reward`
    with its sign turned. None: not known."""
    reward = metrics.get("valid_reward")
    return metrics.get("valid_loss") if reward is None else -reward


def checkpoints_to_drop(values: Mapping[int, float | None], recipe: Recipe) -> list[int]:
    """Steps, ascending. `values`: the `badness` of every checkpoint there is, by step."""
    limit = recipe.save_total_limit
    if limit is None:
        return []
    steps = sorted(values)
    kept = {*steps[-limit:], *(step for step in steps if stays(step, recipe.keep_every))}
    known = {s: v for s, v in values.items() if v is not None and math.isfinite(v)}
    if known:
        kept.add(min(known, key=lambda step: (known[step], step)))
    return [step for step in steps if step not in kept]
