"""TRL configurations built from the plans of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trl

from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE
from tunesmith_worker.rundir.plan import TrainPlan
from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan

Untyped = Any  # Any: TRL is not typed


def common_config(folder: Path, train: TrainPlan, *, seed: int) -> dict[str, Any]:
    """Return the TrainingArguments that every method shares. `Any`: values have many types."""
    return {
        "output_dir": str(folder),  # the trainer writes nothing to this folder
        "seed": seed,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": train.lr_scheduler_type,
        "warmup_steps": train.warmup_steps,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "max_steps": train.total_steps,
        "logging_steps": train.logging_steps,
        "logging_nan_inf_filter": False,  # a NaN must be logged, not averaged away
        "eval_strategy": "no" if train.eval_steps is None else "steps",
        "eval_steps": train.eval_steps,
        "save_strategy": "no",  # RunCallback requests checkpoints
        "bf16": False,  # no autocast: weights have the compute dtype
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "report_to": "none",
        "disable_tqdm": True,
        "push_to_hub": False,
        RECOMPUTE: False,  # StepMemory chooses the layers that recompute
    }


def sft_config(folder: Path, train: TrainPlan, *, seed: int) -> Untyped:
    """Return TRL's configuration for supervised tuning, with every relevant setting explicit."""
    return trl.SFTConfig(
        **common_config(folder, train, seed=seed),
        data_seed=seed,
        # A batch holds all rows of an optimiser step; the trainer splits it into micro-batches.
        per_device_train_batch_size=train.rows_per_step,
        per_device_eval_batch_size=train.per_device_train_batch_size,
        gradient_accumulation_steps=1,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


def reward_column(name: str) -> Callable[..., Untyped]:
    """Return a placeholder for TRL's list of reward functions. TRL reads only the placeholder's
    name, which is the name of a reward column."""

    def column(**_: Untyped) -> Untyped:
        raise AssertionError("_calculate_rewards computes the rewards")

    column.__name__ = name
    return column


def grpo_config(folder: Path, train: TrainPlan, plan: GRPOPlan, *, seed: int) -> Untyped:
    """Return TRL's configuration for GRPO, with every relevant setting explicit.

    `beta` is 0 in this configuration; the trainer sets the real value."""
    rows = plan.completions_per_step
    return trl.GRPOConfig(
        **common_config(folder, train, seed=seed),
        # A batch holds all completions of an optimiser step; the trainer splits it to save memory.
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
