"""Compute the attention half and the MLP half of a decoder layer with our kernels.

The attention half is `x + after(o_proj(attention(rope(qkv_proj(before(x))))))`, and the MLP half is
`x + after(down_proj(act(gate_proj(before(x))) * up_proj(before(x))))`. `before` and `after` are
optional norms.

The kernels read the weights from the layer's own modules. No weights are copied, so the layer's
modules can be trained, saved and moved as usual.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import activations

from tunesmith_kernels.attention import segment_attention
from tunesmith_kernels.gated_activation import Activation
from tunesmith_kernels.lora import Norm, lora_linear
from tunesmith_kernels.qk_norm import qk_norm
from tunesmith_kernels.rms_norm import NormKind, rms_norm
from tunesmith_kernels.rope import rope_table
from tunesmith_kernels.segments import AttentionShape, Segments

from .families import Family
from .projections import Projections, Unsupported

Untyped = Any  # Any: transformers is not typed

ACTIVATIONS: dict[type, Activation] = {
    torch.nn.SiLU: "silu",
    activations.SiLUActivation: "silu",
    activations.GELUActivation: "gelu",
    activations.GELUTanh: "gelu_tanh",
}


class AttentionHalf:
    def __init__(self, layer: Untyped, family: Family) -> None:
        """Raises Unsupported."""
        attention = layer.self_attn
        check_unmodified(layer, attention)
        check_no_dropout(layer, "resid_attn_dropout")
        if attention.attention_dropout:
            raise Unsupported("attention dropout")
        if not attention.is_causal:
            raise Unsupported("non-causal attention")
        self._out = Projections([attention.o_proj])
        self._before = get_norm(layer, family.before_attention)
        self._after = get_norm(layer, family.after_attention)
        self._q_norm, self._k_norm = (get_norm(layer, name, attention) for name in QK_NORMS)
        self._kind = family.norm
        self._rope = bool(getattr(attention, "use_rope", True))
        self._multiplier = float(getattr(layer, "residual_multiplier", 1.0))
        self._shape = attention_shape(attention)
        # Fuse weights last, because an Unsupported error does not undo the fusion.
        self._qkv = Projections([getattr(attention, name) for name in family.qkv])

    def __call__(
        self,
        x: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        segments: Segments,
    ) -> torch.Tensor:
        """Return `x + attention(x)` for x [1, T, hidden] and RoPE's cos and sin [1, T, rotary]."""
        qkv_parts, weight = self._qkv.current()
        qkv = lora_linear(
            x.flatten(0, 1),
            qkv_parts,
            fused_weight=weight,
            norm=_as_norm(self._before, self._kind),
        )
        if self._q_norm is not None and self._k_norm is not None:
            weights = self._q_norm.weight, self._k_norm.weight
            qkv = qk_norm(qkv, *weights, norm_eps(self._q_norm), self._kind, self._shape)
        cos, sin = rope_table(*position_embeddings) if self._rope else (None, None)
        out = segment_attention(qkv, cos, sin, segments, self._shape)
        return _add(x, out.unsqueeze(0), self._out, self._after, self._kind, self._multiplier)

    def release(self) -> None:
        self._qkv.release()


class MLPHalf:
    def __init__(self, layer: Untyped, family: Family) -> None:
        """Raises Unsupported."""
        mlp = layer.mlp
        check_unmodified(layer, mlp)
        check_no_dropout(layer, "resid_mlp_dropout")
        activation = type(getattr(mlp, family.activation))
        if activation not in ACTIVATIONS:
            raise Unsupported(f"unsupported activation {activation.__name__}")
        self._activation: Activation = ACTIVATIONS[activation]
        self._down = Projections([mlp.down_proj])
        self._before = get_norm(layer, family.before_mlp)
        self._after = get_norm(layer, family.after_mlp)
        self._kind = family.norm
        self._multiplier = float(getattr(layer, "residual_multiplier", 1.0))
        self._gate_up = Projections(
            [getattr(mlp, name) for name in family.gate_up]
        )  # Fuse weights last, because an error does not undo the fusion.

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x + mlp(x)` for x [1, T, hidden]."""
        parts, weight = self._gate_up.current()
        norm = _as_norm(self._before, self._kind)
        gate_up = lora_linear(x, parts, fused_weight=weight, norm=norm)
        return _add(
            x, gate_up, self._down, self._after, self._kind, self._multiplier, self._activation
        )

    def release(self) -> None:
        self._gate_up.release()


def _add(
    x: torch.Tensor,
    inner: torch.Tensor,
    projection: Projections,
    after: Untyped,
    kind: NormKind,
    multiplier: float,
    activation: Activation | None = None,
) -> torch.Tensor:
    """Return `x + multiplier * after(projection(activation(inner)))`."""
    parts, _ = projection.current()
    if after is None:
        return lora_linear(
            inner, parts, activation=activation, residual=x, residual_scale=multiplier
        )
    y = lora_linear(inner, parts, activation=activation)
    y = rms_norm(y, after.weight, norm_eps(after), kind)
    return x + (y if multiplier == 1.0 else y * multiplier)


def attention_shape(attention: Untyped) -> AttentionShape:
    config, head_dim = attention.config, int(attention.head_dim)
    name = type(attention).__name__
    # In Mistral and Phi-3, the window is in the configuration; in other families, in the module.
    window = getattr(attention, "sliding_window", None)
    if not hasattr(attention, "sliding_window") and name in _WINDOW_IN_CONFIG:
        window = getattr(config, "sliding_window", None)
    # Gemma 3 reads a soft cap from its configuration, but does not apply it.
    softcap = attention.attn_logit_softcapping if name in _SOFTCAPPED else None
    return AttentionShape(
        heads=int(config.num_attention_heads),
        kv_heads=int(config.num_key_value_heads),
        head_dim=head_dim,
        scale=float(attention.scaling),
        window=window,
        softcap=softcap,
    )


_WINDOW_IN_CONFIG = ("MistralAttention", "Phi3Attention")
_SOFTCAPPED = ("Gemma2Attention", "VaultGemmaAttention")
QK_NORMS = ("q_norm", "k_norm")


def get_norm(layer: Untyped, name: str | None, parent: Untyped = None) -> Untyped:
    """Return the norm `name` of `parent` (default: `layer`), or None if it does not exist."""
    module = getattr(parent or layer, name, None) if name else None
    if module is not None:
        check_unmodified(layer, module)
    return module


def _as_norm(module: Untyped, kind: NormKind) -> Norm | None:
    return None if module is None else Norm(module.weight, norm_eps(module), kind)


def norm_eps(module: Untyped) -> float:
    eps = getattr(module, "variance_epsilon", None)
    return float(module.eps if eps is None else eps)


def check_unmodified(layer: Untyped, module: Untyped) -> None:
    """Raise Unsupported if our kernels would not compute the same as `module`.

    The module must be from the layer's architecture and contain no hooks or replaced forwards,
    because our kernels skip them."""
    if type(module).__module__ != type(layer).__module__:
        raise Unsupported(f"{type(module).__name__} replaces a module of {type(layer).__name__}")
    for part in module.modules():
        hooks = (part._forward_hooks, part._forward_pre_hooks)
        backward = (part._backward_hooks, part._backward_pre_hooks)
        if any((*hooks, *backward)) or "forward" in vars(part):
            raise Unsupported(f"{type(part).__name__} has hooks or a replaced forward")


def check_no_dropout(layer: Untyped, name: str) -> None:
    if getattr(getattr(layer, name, None), "p", 0.0):
        raise Unsupported("dropout on the residual stream")
