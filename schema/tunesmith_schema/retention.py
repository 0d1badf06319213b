"""Retention rules for checkpoints and resume points, on a worker's disk and in storage."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from .recipe import Recipe

NEWEST_RESUME_POINTS = 2
"""Number of newest resume points to keep; if the newest one is damaged, the second newest is
used."""


def keeps_step(step: int, keep_every: int | None) -> bool:
    """Return True if `recipe.keep_every` keeps the checkpoint or resume point of this step."""
    return keep_every is not None and step % keep_every == 0


def resume_points_to_keep(steps: Collection[int], keep_every: int | None) -> set[int]:
    """Return the steps whose resume points are kept."""
    newest = sorted(steps)[-NEWEST_RESUME_POINTS:]
    return {*newest, *(step for step in steps if keeps_step(step, keep_every))}


def selection_loss(metrics: Mapping[str, float | None]) -> float | None:
    """Return the value that ranks checkpoints: `valid_loss` or the negative `valid_reward`.

    Lower values are better. The result is None if neither metric was measured."""
    reward = metrics.get("valid_reward")
    return metrics.get("valid_loss") if reward is None else -reward


def checkpoints_to_drop(values: Mapping[int, float | None], recipe: Recipe) -> list[int]:
    """Return the steps whose checkpoints are deleted, ascending.

    `values` maps the step of each checkpoint to its `selection_loss`.
    """
    limit = recipe.save_total_limit
    if limit is None:
        return []
    steps = sorted(values)
    kept = {*steps[-limit:], *(step for step in steps if keeps_step(step, recipe.keep_every))}
    known = {s: v for s, v in values.items() if v is not None and math.isfinite(v)}
    if known:
        kept.add(min(known, key=lambda step: (known[step], step)))
    return [step for step in steps if step not in kept]
