"""What the configurations of all trainers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE
from tunesmith_worker.rundir.plan import TrainPlan


def common_config(folder: Path, train: TrainPlan, *, seed: int) -> dict[str, Any]:
    """Arguments of transformers' TrainingArguments. Any: they are of many types."""
    return {
        "output_dir": str(folder),  # nothing is written there
        "seed": seed,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": train.lr_scheduler_type,
        "warmup_steps": train.warmup_steps,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "max_steps": train.total_steps,
        "logging_steps": train.logging_steps,
        "logging_nan_inf_filter": False,  # a NaN must be seen, not averaged away
        "eval_strategy": "no" if train.eval_steps is None else "steps",
        "eval_steps": train.eval_steps,
        "save_strategy": "no",  # the callback asks for checkpoints
        "bf16": False,  # no autocast: the weights are in the dtype that is computed in
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "report_to": "none",
        "disable_tqdm": True,
        "push_to_hub": False,
        RECOMPUTE: False,  # all or nothing: step_memory.py sets it layer by layer
    }
