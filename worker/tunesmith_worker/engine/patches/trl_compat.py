"""TRL's private APIs that we use. test_trl_compat.py fails if TRL changes them."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import torch
import trl
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

__all__ = [
    "RECOMPUTE",
    "FusedCausalLMOutput",
    "add_reference_head",
    "add_scoring_head",
    "load_balancing_loss",
    "logit_scale",
    "metrics_so_far",
    "restore_metrics",
]

Untyped = Any  # Any: transformers is not typed

# TRL 1.16 uses this name of transformers at every step, which causes a warning.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)

_NAMES = {field.name for field in fields(trl.SFTConfig)}
RECOMPUTE = (
    "activation_checkpointing" if "activation_checkpointing" in _NAMES else "gradient_checkpointing"
)
"""Name of the training option that recomputes activations, in this transformers version."""


def logit_scale(config: Untyped) -> float:
    """Return the factor that multiplies a model's logits before any soft cap.

    The function reads the same fields of the configuration as TRL's fused head.
    """
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) is not None:
            return float(getattr(config, name))
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1.0 / float(scaling)


def load_balancing_loss(
    config: Untyped, router_logits: tuple[torch.Tensor, ...], mask: torch.Tensor | None
) -> torch.Tensor:
    """Compute the load-balancing loss of a mixture of experts, as TRL's fused head computes it.

    `router_logits`: [tokens, experts] of each layer. `mask` [B, T]: 0 for padding; None if there is
    no padding."""
    experts = config.num_experts, config.num_experts_per_tok
    loss: torch.Tensor = load_balancing_loss_func(router_logits, *experts, mask)
    return loss


def add_reference_head(model: Untyped, temperature: float) -> Untyped:
    """Add TRL's fused head, which computes log-probs, to GRPO's reference model. GRPOTrainer does
    the same."""
    add_fused_lm_head(model, temperature=temperature)
    return model


def add_scoring_head(model: Untyped) -> None:
    """Add TRL's fused head to a model, to compute the log-probs of an evaluation's tokens and
    whether each token is the most likely one."""
    add_fused_lm_head(model, outputs=("log_probs", "is_top1"))


def metrics_so_far(trainer: Untyped, mode: str = "train") -> Untyped:
    """Return the metrics that TRL's SFTTrainer has collected since its last log, and the total
    number of trained tokens.

    `mode` is `train` or `eval`."""
    lists = {name: list(values) for name, values in trainer._metrics[mode].items()}
    return lists, trainer._total_train_tokens


def restore_metrics(trainer: Untyped, metrics: Untyped, mode: str = "train") -> None:
    """Restore metrics that `metrics_so_far` returned."""
    lists, trainer._total_train_tokens = metrics
    trainer._metrics[mode].clear()
    trainer._metrics[mode].update(lists)
