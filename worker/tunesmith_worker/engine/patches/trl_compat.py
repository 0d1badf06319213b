"""Private parts of TRL that we use. test_trl_compat.py fails by name when TRL changes one."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import trl
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

__all__ = [
    "RECOMPUTE",
    "FusedCausalLMOutput",
    "add_reference_head",
    "logit_scale",
    "metrics_so_far",
    "restore_metrics",
]

Untyped = Any  # Any: transformers is not typed

# TRL 1.16 asks transformers 5.23 by the old name, at every step.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)

_NAMES = {field.name for field in fields(trl.SFTConfig)}
RECOMPUTE = (
    "activation_checkpointing" if "activation_checkpointing" in _NAMES else "gradient_checkpointing"
)
"""What this transformers calls recomputing activations in backward."""


def logit_scale(config: Untyped) -> float:
    """By what a model multiplies its logits, before any soft cap, under the names that TRL's
    fused head knows."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) is not None:
            return float(getattr(config, name))
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1.0 / float(scaling)


def add_reference_head(model: Untyped, temperature: float) -> Untyped:
    """What TRL's GRPOTrainer does to a model whose log-probabilities it asks for."""
    add_fused_lm_head(model, temperature=temperature)
    return model


def metrics_so_far(trainer: Untyped, mode: str = "train") -> Untyped:
    """What TRL's SFTTrainer has gathered since it last logged, and all its tokens. `mode`: `train`
    or `eval`."""
    lists = {name: list(values) for name, values in trainer._metrics[mode].items()}
    return lists, trainer._total_train_tokens


def restore_metrics(trainer: Untyped, metrics: Untyped, mode: str = "train") -> None:
    lists, trainer._total_train_tokens = metrics
    trainer._metrics[mode].clear()
    trainer._metrics[mode].update(lists)
