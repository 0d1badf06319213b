"""Describe a transformers causal language model for the decoder.

The decoder supports the same model families as the training patches and makes the same checks. An
`Architecture` refers to the model's modules, so no weights are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import peft
import torch

from tunesmith_kernels.gated_activation import Activation
from tunesmith_kernels.rms_norm import NormKind
from tunesmith_kernels.segments import AttentionShape
from tunesmith_worker.engine.patches.families import FAMILIES, is_known
from tunesmith_worker.engine.patches.half_blocks import (
    ACTIVATIONS,
    attention_shape,
    check_unmodified,
    get_norm,
    has_rope,
    norm_eps,
)
from tunesmith_worker.engine.patches.projections import Unsupported, check_linear
from tunesmith_worker.engine.patches.trl_compat import logit_scale

from .protocol import UnsupportedModel

Untyped = Any  # Any: transformers and peft are not typed


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    module: Untyped
    eps: float
    kind: NormKind


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    before_attention: NormSpec | None
    qkv: tuple[Untyped, ...]
    q_norm: NormSpec | None
    k_norm: NormSpec | None
    shape: AttentionShape
    layer_type: str | None
    """Name of the layer's RoPE frequency set; None if all layers share one set."""
    rope: bool
    out: Untyped
    after_attention: NormSpec | None
    before_mlp: NormSpec | None
    gate_up: tuple[Untyped, ...]
    activation: Activation
    down: Untyped
    after_mlp: NormSpec | None
    residual_multiplier: float


@dataclass(frozen=True, kw_only=True)
class Architecture:
    embedding: Untyped
    embedding_multiplier: float
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    head: Untyped
    logit_scale: float
    softcap: float | None
    rotary: Untyped
    """RoPE module of the model."""
    vocabulary: int
    """Number of rows of the embedding."""
    dtype: torch.dtype
    device: torch.device


def read_architecture(model: Untyped) -> Architecture:
    """Read the architecture of `model`, which may have PEFT's LoRA and our patches.

    Raises UnsupportedModel with the reason if the decoder cannot compute the model.
    """
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    try:
        return _read(causal)
    except Unsupported as reason:
        raise UnsupportedModel(f"{type(causal).__name__}: {reason}") from None


def _read(causal: Untyped) -> Architecture:
    backbone = causal.base_model
    layers: Untyped = getattr(backbone, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        raise Unsupported("unsupported model family")
    for layer in layers:
        if not is_known(layer):
            raise Unsupported(f"unsupported model family ({type(layer).__name__})")
    family = FAMILIES[type(layers[0]).__name__]
    if not family.decodes:
        raise Unsupported(f"unsupported model family ({type(layers[0]).__name__})")
    _check_model(causal, layers[0])
    config = backbone.config
    kind = family.norm
    assert kind is not None, "the decoder supports only families with RMSNorm"
    several_ropes = isinstance(backbone.rotary_emb.rope_type, dict)
    # layer_types has too many entries if a model is cut to its first layers.
    types = config.layer_types[: len(layers)] if several_ropes else [None] * len(layers)
    specs = [_layer(layer, name) for layer, name in zip(layers, types, strict=True)]
    if len({(s.shape.heads, s.shape.kv_heads, s.shape.head_dim) for s in specs}) > 1:
        raise Unsupported("the model's layers differ in the number or size of attention heads")
    head = causal.get_output_embeddings()
    norm = NormSpec(module=backbone.norm, eps=norm_eps(backbone.norm), kind=kind)
    check_unmodified(layers[0], backbone.norm)
    return Architecture(
        embedding=causal.get_input_embeddings(),
        embedding_multiplier=float(getattr(backbone, "embedding_multiplier", 1.0)),
        layers=tuple(specs),
        norm=norm,
        head=head,
        logit_scale=logit_scale(config),
        softcap=getattr(config, "final_logit_softcapping", None),
        rotary=backbone.rotary_emb,
        vocabulary=causal.get_input_embeddings().weight.shape[0],
        dtype=causal.dtype,
        device=causal.device,
    )


def _check_model(causal: Untyped, layer: Untyped) -> None:
    """Raise Unsupported if the class of the model is not the class that transformers uses with
    these layers, or if modules have hooks."""
    expected = type(layer).__name__.removesuffix("DecoderLayer") + "ForCausalLM"
    kind = type(causal)
    if kind.__name__ != expected or kind.__module__ != type(layer).__module__:
        raise Unsupported(f"the model class is not transformers' {expected}")
    modules = [causal.base_model, *causal.base_model.layers, causal.base_model.rotary_emb]
    for module in (*modules, causal.get_input_embeddings(), causal.get_output_embeddings()):
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            raise Unsupported(
                f"{type(module).__name__} has hooks, which the rollout engine would skip"
            )


def _layer(layer: Untyped, layer_type: str | None) -> LayerSpec:
    family = FAMILIES[type(layer).__name__]
    attention, mlp = layer.self_attn, layer.mlp
    for module in (attention, mlp):
        check_unmodified(layer, module)
    if not attention.is_causal:
        raise Unsupported("non-causal attention")
    activation = type(getattr(mlp, family.activation))
    if activation not in ACTIVATIONS:
        raise Unsupported(f"unsupported activation {activation.__name__}")

    def norm(name: str | None, parent: Untyped = None) -> NormSpec | None:
        module = get_norm(layer, name, parent)
        if module is None:
            return None
        assert family.norm is not None, "the decoder supports only families with RMSNorm"
        return NormSpec(module=module, eps=norm_eps(module), kind=family.norm)

    return LayerSpec(
        before_attention=norm(family.before_attention),
        qkv=_linears(attention, family.qkv),
        q_norm=norm(family.qk_norms[0], attention),
        k_norm=norm(family.qk_norms[1], attention),
        shape=attention_shape(attention),
        layer_type=layer_type,
        rope=has_rope(attention),
        out=_linears(attention, ["o_proj"])[0],
        after_attention=norm(family.after_attention),
        before_mlp=norm(family.before_mlp),
        gate_up=_linears(mlp, family.gate_up),
        activation=ACTIVATIONS[activation],
        down=_linears(mlp, ["down_proj"])[0],
        after_mlp=norm(family.after_mlp),
        residual_multiplier=float(getattr(layer, "residual_multiplier", 1.0)),
    )


def _linears(parent: Untyped, names: Sequence[str]) -> tuple[Untyped, ...]:
    modules = tuple(getattr(parent, name) for name in names)
    for module in modules:
        check_linear(module)
    return modules
