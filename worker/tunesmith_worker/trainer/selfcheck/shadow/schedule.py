"""Learning rate of each update, computed from the recipe instead of the trainer's scheduler."""

from __future__ import annotations

import math

from tunesmith_worker.rundir.plan import Scheduler, TrainPlan


def learning_rate_at(update: int, plan: TrainPlan) -> float:
    """Return the learning rate of an update, counted from 0.

    During warm-up, the learning rate grows linearly from 0. `constant` ignores the warm-up, as in
    transformers."""
    shape = _shape(update, plan.lr_scheduler_type, plan.warmup_steps, plan.total_steps)
    return plan.learning_rate * shape


def _shape(update: int, kind: Scheduler, warmup: int, total: int) -> float:
    if kind == "constant":
        return 1.0
    if update < warmup:
        return update / warmup
    if kind == "constant_with_warmup":
        return 1.0
    done = (update - warmup) / max(1, total - warmup)
    if kind == "linear":
        return max(0.0, 1.0 - done)
    return max(0.0, (1.0 + math.cos(math.pi * done)) / 2)
