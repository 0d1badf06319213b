"""Describe what our kernels would need to compute a model's layers.

For each class of layer, one layer is read: the names and classes of its modules show the
mechanisms that our kernels lack. The description does not estimate the work to implement these
mechanisms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

Untyped = Any  # Any: transformers is not typed

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_STATE_SPACE = (
    r"A_log|conv1d|in_proj_qkv\w*|dt_proj|time_mix\w*|mixer|linear_attn|rg_lru|recurrent\w*"
)
_LATENT = r"kv_a_proj\w*|kv_b_proj|q_a_proj|kv_down_proj|wkv|wkv_a"
_INDEXER = r"indexer|index_\w+|compressor"
_GATE = r"gate_proj|g_proj|attn_gate|gate|output_gate"


def needs(causal: Untyped) -> list[str]:
    """Return the mechanisms of a model that our kernels lack; [] if they lack none."""
    layers = decoder_layers(causal)
    if not layers:
        return ["a list of decoder layers"]
    found: dict[str, None] = {}
    if getattr(causal.base_model, "layers", None) is None:
        found["the names of its layers"] = None
    if not any(name.endswith("rotary_emb") for name, _ in causal.named_modules()):
        found["positions other than RoPE"] = None
    for layer in {type_of(layer): layer for layer in layers}.values():
        found |= dict.fromkeys(_layer_needs(layer))
    return list(found)


def decoder_layers(causal: Untyped) -> list[torch.nn.Module]:
    """Return the list of layers that has the most parameters; [] if no list has any."""
    lists = [list(m) for m in causal.modules() if isinstance(m, torch.nn.ModuleList)]
    full = [layers for layers in lists if layers and any(True for _ in layers[0].parameters())]
    return max(
        full, key=lambda layers: sum(p.numel() for m in layers for p in m.parameters()), default=[]
    )


def type_of(layer: torch.nn.Module) -> tuple[str, ...]:
    return (type(layer).__name__, *(type(child).__name__ for child in layer.children()))


def _layer_needs(layer: torch.nn.Module) -> Iterator[str]:
    names = {part for name, _ in layer.named_modules() for part in name.split(".")}
    names |= {part for name, _ in layer.named_parameters() for part in name.split(".")}

    def has(pattern: str) -> bool:
        return any(re.fullmatch(pattern, name) for name in names)

    if has(_STATE_SPACE):
        yield "state-space or linear-attention layers"
    if has(_LATENT):
        yield "latent attention (keys and values from a low-rank projection)"
    elif not names >= _PROJECTIONS and not has(_STATE_SPACE):
        yield "other projections of queries, keys and values"
    if has(_INDEXER):
        yield "sparse attention with an indexer"
    if has("sinks?|sink_\\w+"):
        yield "attention sinks"
    attention = getattr(layer, "self_attn", None)
    if attention is not None and any(re.fullmatch(_GATE, n) for n, _ in attention.named_children()):
        yield "a gate on the attention's output"
    if any("cross" in name or name == "encoder_attn" for name in names):
        yield "cross-attention"
    if has("experts|block_sparse_moe|moe|router"):
        yield "experts (for the MLP half)"
    elif not has("gate_proj|gate_up_proj|w1|gate_up_linear|input_linear"):
        yield "an MLP without a gate (for the MLP half)"
    if any("LayerNorm" in type(m).__name__ for m in layer.modules()):
        yield "LayerNorm (runs as it is)"
    if has("shared_mlp|hyper_connection|attn_hyper_connection|altup|laurel|per_layer_\\w+"):
        yield "other sums on the residual stream"
