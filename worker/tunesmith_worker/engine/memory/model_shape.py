"""Read the sizes of any causal language model, for the memory prediction.

The configuration of a Llama-like model has all sizes. Configurations of other families use other
names, or lack a size (GPT-2 has no `intermediate_size`, Mamba has no attention heads, Gemma 4 has
two head sizes). If a size is missing, all sizes are computed from the shapes of the model's
weights. Sizes computed from the weights are approximate; the trial pass (probe.py) corrects the
memory prediction.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from tunesmith_worker.engine.model.config_values import config_size, config_value

from .shapes import ModelShape, shape_of

Untyped = Any  # Any: transformers and PEFT are not typed

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k_experts")


def read_shape(model: Untyped) -> ModelShape:
    """Return the model's sizes from its configuration; if the configuration lacks a size, compute
    the sizes from the model's weights."""
    try:
        return shape_of(model.config)
    except (AttributeError, RuntimeError, TypeError, ValueError, ZeroDivisionError):
        # These errors mean that a size is missing, is not a number, or differs between layers.
        return count_shape(model)


def count_shape(model: Untyped) -> ModelShape:
    """Compute the sizes from the weights of a model, with or without PEFT's adapters."""
    config = model.config.get_text_config()
    vocabulary, hidden = _table(model, config)
    blocks = decoder_layers(model)
    layers = config_size(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    layers = layers or max(1, len(blocks))
    heads = config_size(config, "num_attention_heads", "n_head", "n_heads", "num_heads") or 1
    head_dim = config_size(config, "head_dim") or max(1, hidden // heads)
    kv_heads = config_size(config, "num_key_value_heads", "num_kv_heads") or heads
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    per_layer = sum(_active_weights(block, config) for block in blocks) / layers
    tied = config_value(config, "tie_word_embeddings")
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=max(hidden, round((per_layer - attention) / (3 * hidden))),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary=head_dim,
        vocabulary=vocabulary,
        tied=bool(tied),
        before_norms=True,
        after_norms=False,
        qk_norm=False,
        softcap=False,
    )


def _table(model: Untyped, config: Untyped) -> tuple[int, int]:
    weight: torch.Tensor | None = getattr(model.get_input_embeddings(), "weight", None)
    rows, columns = (1, 1) if weight is None else (int(weight.shape[0]), int(weight.shape[-1]))
    vocabulary = config_size(config, "vocab_size") or rows
    return vocabulary, config_size(config, "hidden_size", "d_model", "n_embd") or columns


def decoder_layers(model: Untyped) -> list[torch.nn.Module]:
    """Return the model's layers: the modules that support recomputation. If no module supports
    recomputation, return the longest torch.nn.ModuleList."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    lists = [list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return layers or max(lists, key=len, default=[])


def _active_weights(block: torch.nn.Module, config: Untyped) -> float:
    experts = config_size(config, *EXPERTS)
    share = min(1.0, (config_size(config, *_ACTIVE) or 1) / experts) if experts else 1.0
    total = 0.0
    for name, weight in block.named_parameters():
        if weight.dim() < 2 or ".lora_" in name:
            continue
        routed = weight.dim() > 2 or ".experts." in f".{name}"
        total += weight.numel() * (share if routed else 1.0)
    return total
