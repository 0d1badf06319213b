"""TRL's configuration of a GRPO run, for our plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trl

from tunesmith_worker.rundir.plan import TrainPlan
from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan

from .common_config import common_config

Untyped = Any  # Any: TRL is not typed


def reward_column(name: str) -> Callable[..., Untyped]:
    """TRL asks it for its name alone: `_calculate_rewards` is ours."""

    def column(**_: Untyped) -> Untyped:
        raise AssertionError("rewards come from the rollouts' graders")

    column.__name__ = name
    return column


def grpo_config(folder: Path, train: TrainPlan, plan: GRPOPlan, *, seed: int) -> Untyped:
    """TRL's configuration for our plans: nothing in it is left to TRL's defaults that matters.
    Without `beta`, which the trainer sets itself."""
    rows = plan.completions_per_step
    return trl.GRPOConfig(
        **common_config(folder, train, seed=seed),
        # A batch is an optimiser step's completions: the trainer takes them apart for memory.
        per_device_train_batch_size=rows,
        per_device_eval_batch_size=rows,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=plan.num_generations,
        num_iterations=plan.num_iterations,
        max_completion_length=plan.max_completion_length,
        temperature=plan.temperature,
        top_p=plan.top_p,
        top_k=plan.top_k,
        min_p=plan.min_p,
        loss_type=plan.loss_type,
        beta=0.0,
        epsilon=plan.epsilon,
        epsilon_high=plan.epsilon_high,
        delta=plan.delta,
        importance_sampling_level=plan.importance_sampling_level,
        scale_rewards=plan.scale_rewards,
        mask_truncated_completions=plan.mask_truncated_completions,
        top_entropy_quantile=plan.top_entropy_quantile,
        use_vllm=False,
        log_completions=False,
        remove_unused_columns=False,
    )
