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
from tunesmith_kernels.rope import rope, rope_table
from tunesmith_kernels.rope_pairs import halves_of_pairs, split_pairs
from tunesmith_kernels.segments import AttentionShape, Segments
from tunesmith_worker.engine.model.softcap import CAPPED_ATTENTION

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
        if getattr(attention, "residual_dropout", 0.0):
            raise Unsupported("dropout on the residual stream")
        if getattr(attention.config, "clip_qkv", None) is not None:
            raise Unsupported("clipped queries, keys and values")
        if getattr(attention, "use_qk_norm", False):
            raise Unsupported("norms of queries and keys that are not RMSNorm")
        if attention.attention_dropout:
            raise Unsupported("attention dropout")
        if not attention.is_causal:
            raise Unsupported("non-causal attention")
        self._out = Projections([attention.o_proj])
        self._before = _HalfNorm(layer, family.before_attention, family.norm)
        self._after = _HalfNorm(layer, family.after_attention, family.norm)
        self._q_norm, self._k_norm = (get_norm(layer, name, attention) for name in family.qk_norms)
        self._kind, self._norm_after_rope = family.norm, family.norm_after_rope
        self._rope = family.rope if has_rope(attention) else None
        self._scaled_from = _scaled_from(attention) if family.scaled_queries else None
        self._multiplier = float(getattr(layer, "residual_multiplier", 1.0))
        self._shape = attention_shape(attention)
        # Fuse weights last, because an Unsupported error does not undo the fusion.
        self._qkv = Projections([getattr(attention, name) for name in family.qkv])

    def __call__(
        self,
        x: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        segments: Segments,
        normed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return `x + attention(norm(x))` for x [1, T, hidden] and RoPE's cos and sin [1, T,
        rotary]. `normed`: `norm(x)`, or None to compute `norm(x)` here."""
        qkv_parts, weight = self._qkv.current()
        h, norm = self._before.of(x, normed)
        qkv = lora_linear(h.flatten(0, 1), qkv_parts, fused_weight=weight, norm=norm)
        if self._norm_after_rope:
            qkv = self._normed(self._rotated(qkv, position_embeddings))
            out = segment_attention(qkv, None, None, segments, self._shape)
            return _add(x, out.unsqueeze(0), self._out, self._after, self._multiplier)
        qkv = self._normed(qkv)
        if self._rope is None:
            out = segment_attention(qkv, None, None, segments, self._shape)
        else:
            cos, sin = position_embeddings
            if self._rope == "pairs_repeated":
                cos, sin = halves_of_pairs(cos), halves_of_pairs(sin)
            cos, sin = rope_table(cos, sin)
            if self._rope != "halves":
                qkv = split_pairs(qkv, 2 * cos.shape[-1], self._shape)
            out = segment_attention(qkv, cos, sin, segments, self._shape)
        return _add(x, out.unsqueeze(0), self._out, self._after, self._multiplier)

    def _normed(self, qkv: torch.Tensor) -> torch.Tensor:
        if self._q_norm is None or self._k_norm is None or self._kind is None:
            return qkv
        weights = self._q_norm.weight, self._k_norm.weight
        return qk_norm(qkv, *weights, norm_eps(self._q_norm), self._kind, self._shape)

    def _rotated(
        self, qkv: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        shape = self._shape
        heads = qkv.unflatten(1, (-1, shape.head_dim))
        q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        q, k = rope(q, k, *rope_table(*position_embeddings))
        return torch.cat([q, k, v], dim=1).flatten(1)

    def computes(self, segments: Segments) -> bool:
        """Return False if a row is so long that the stock attention scales its queries."""
        return self._scaled_from is None or segments.tokens <= self._scaled_from

    def release(self) -> None:
        self._qkv.release()


class MLPHalf:
    def __init__(self, layer: Untyped, family: Family) -> None:
        """Raises Unsupported."""
        mlp = layer.mlp
        if not family.gate_up or not all(hasattr(mlp, name) for name in family.gate_up):
            raise Unsupported(f"{type(mlp).__name__} is not a gated MLP")
        check_unmodified(layer, mlp)
        if getattr(mlp, "residual_dropout", 0.0):
            raise Unsupported("dropout on the residual stream")
        check_no_dropout(layer, "resid_mlp_dropout")
        activation = type(getattr(mlp, family.activation))
        if activation not in ACTIVATIONS:
            raise Unsupported(f"unsupported activation {activation.__name__}")
        self._activation: Activation = ACTIVATIONS[activation]
        self._down = Projections([mlp.down_proj])
        before = family.before_attention if family.parallel else family.before_mlp
        self._before = _HalfNorm(layer, before, family.norm)
        self._after = _HalfNorm(layer, family.after_mlp, family.norm)
        self._multiplier = float(getattr(layer, "residual_multiplier", 1.0))
        self._gate_up = Projections(
            [getattr(mlp, name) for name in family.gate_up]
        )  # Fuse weights last, because an error does not undo the fusion.

    def __call__(self, x: torch.Tensor, normed: torch.Tensor | None = None) -> torch.Tensor:
        """Return `x + mlp(norm(x))` for x [1, T, hidden]. `normed`: `norm(x)`, or None to compute
        `norm(x)` here."""
        parts, weight = self._gate_up.current()
        h, norm = self._before.of(x, normed)
        gate_up = lora_linear(h, parts, fused_weight=weight, norm=norm)
        return _add(x, gate_up, self._down, self._after, self._multiplier, self._activation)

    def release(self) -> None:
        self._gate_up.release()


class _HalfNorm:
    """Optional norm before or after a half block."""

    def __init__(self, layer: Untyped, name: str | None, kind: NormKind | None) -> None:
        """`kind`: None if the model's own module computes the norm."""
        self._kind = kind
        self._module: Untyped = get_norm(layer, name) if kind else getattr(layer, name or "", None)

    @property
    def exists(self) -> bool:
        return self._module is not None

    def of(self, x: torch.Tensor, normed: torch.Tensor | None) -> tuple[torch.Tensor, Norm | None]:
        """Return the input of the projections, and the norm that their kernel must apply to this
        input. The norm is None if the input is already normalised."""
        if normed is not None:
            return normed, None
        if self._kind is None and self._module is not None:
            return self._module(x), None
        return x, None if self._kind is None else _as_norm(self._module, self._kind)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._kind is None:
            normed: torch.Tensor = self._module(x)
            return normed
        return rms_norm(x, self._module.weight, norm_eps(self._module), self._kind)


def _add(
    x: torch.Tensor,
    inner: torch.Tensor,
    projection: Projections,
    after: _HalfNorm,
    multiplier: float,
    activation: Activation | None = None,
) -> torch.Tensor:
    parts, _ = projection.current()
    if not after.exists:
        return lora_linear(
            inner, parts, activation=activation, residual=x, residual_scale=multiplier
        )
    y = lora_linear(inner, parts, activation=activation)
    y = after(y)
    return x + (y if multiplier == 1.0 else y * multiplier)


def attention_shape(attention: Untyped) -> AttentionShape:
    config, head_dim = attention.config, int(attention.head_dim)
    name = type(attention).__name__
    # In Mistral and Phi-3, the window is in the configuration; in other families, in the module.
    window = getattr(attention, "sliding_window", None)
    if not getattr(attention, "is_sliding", True):  # Exaone 4 sets the window in every layer
        window = None
    if not hasattr(attention, "sliding_window") and name in _WINDOW_IN_CONFIG:
        window = getattr(config, "sliding_window", None)
    # Gemma 3 reads a soft cap from its configuration, but does not apply it.
    softcap = attention.attn_logit_softcapping if name in CAPPED_ATTENTION else None
    return AttentionShape(
        heads=int(config.num_attention_heads),
        kv_heads=int(config.num_key_value_heads),
        head_dim=head_dim,
        scale=float(attention.scaling),
        window=window,
        softcap=softcap,
    )


_WINDOW_IN_CONFIG = (
    *("MistralAttention", "Ministral3Attention", "MixtralAttention"),
    *("Phi3Attention", "Starcoder2Attention"),
)


def has_rope(attention: Untyped) -> bool:
    """Return False for an attention layer without RoPE."""
    name = type(attention).__name__
    if name == "Cohere2Attention":
        return attention.sliding_window is not None
    if name == "Exaone4Attention":
        return attention.sliding_window is None or bool(attention.is_sliding)
    return bool(getattr(attention, "use_rope", True))


def _scaled_from(attention: Untyped) -> int | None:
    """Return the first position whose query is scaled; None if no query is scaled."""
    rope = attention.config.rope_parameters
    return int(rope["original_max_position_embeddings"]) if rope["llama_4_scaling_beta"] else None


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

    Our kernels skip hooks and replaced forwards, so the module must have none. The classes of the
    module and of the layer must be defined in the same Python module."""
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
