"""Autograd node for an operation such as RMSNorm, and the linear layers with LoRA that follow it.

All projections of a node have the same input x. A node computes q, k and v; or gate and up; or a
single projection:

    h   = prologue(x)                           RMSNorm, a gated activation, or x itself
    y_i = h W_i' + b_i + s_i (h A_i') B_i'      https://arxiv.org/abs/2106.09685, equation 3
    y   = residual + m [y_1 | y_2 | ...]        m = residual_scale; the residual is optional

The gradients use d = m dy and e_i = s_i d_i B_i, where d_i are the columns of d that belong to y_i.
The matrices e and A are the concatenations of all e_i and of all A_i:

    dB_i = s_i d_i' (h A_i')    dA = e' h    dW = d' h    dh = d W + e A

The forward pass saves x, the row statistics and h A'. The backward pass recomputes h, the input of
the projections. The backward pass computes no gradients of frozen weights. One matrix product
computes h A_i' for all adapters. NF4 weights are dequantised in the forward pass and again in the
backward pass; the dequantised weights are not kept in memory. The BLAS library computes all large
products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .gated_activation import Activation, gated_backward, gated_forward, gated_reference
from .nf4 import nf4_reference, side_by_side
from .nf4_types import NF4Weight
from .rms_norm import (
    NormKind,
    rms_norm_apply,
    rms_norm_backward,
    rms_norm_forward,
    rms_norm_reference,
)
from .tiles import wide

__all__ = ["Adapter", "Norm", "Projection", "lora_linear", "lora_linear_reference"]


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA adapter of one projection. The adapter adds s (h A') B' to the projection's output."""

    a: torch.Tensor
    """LoRA's matrix A, [r, in]."""
    b: torch.Tensor
    """LoRA's matrix B, [out, r]."""
    scale: float
    """The factor s: lora_alpha / r, or lora_alpha / sqrt(r) for rank-stabilised LoRA
    (https://arxiv.org/abs/2312.03732)."""
    dropout: float = 0.0
    """Dropout probability of the adapter's input. Each projection has its own dropout mask."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer with an optional adapter."""

    weight: torch.Tensor | NF4Weight
    """Weight of the layer, [out, in]. The weights of one node are either all NF4 or all plain
    tensors."""
    bias: torch.Tensor | None = None
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm before the projections."""

    weight: torch.Tensor
    eps: float
    kind: NormKind


@dataclass(frozen=True, slots=True)
class _Spec:
    norm: tuple[float, NormKind] | None
    activation: Activation | None
    outs: tuple[int, ...]
    scales: tuple[float, ...]
    dropouts: tuple[float, ...]
    residual_scale: float
    dtype: torch.dtype
    """Dtype of the matrix products: the autocast dtype, or without autocast the dtype of the
    input."""
    packed: tuple[NF4Weight, ...]
    """NF4 weights; empty if the weights are plain tensors."""


def lora_linear(
    x: torch.Tensor,
    projections: Sequence[Projection],
    *,
    fused_weight: torch.Tensor | None = None,
    norm: Norm | None = None,
    activation: Activation | None = None,
    residual: torch.Tensor | None = None,
    residual_scale: float = 1.0,
) -> torch.Tensor:
    """Return the projections of x [..., in] in one tensor [..., sum of outs].

    If `activation` is set, x is [..., 2 in] and contains gate and up.

    `fused_weight`: one tensor [sum of outs, in] that shares memory with the weights of all
    projections. With `fused_weight`, one matrix product computes all projections. `residual`:
    tensor [..., sum of outs] that is added.
    """
    spec = _Spec(
        norm=(norm.eps, norm.kind) if norm else None,
        activation=activation,
        outs=tuple(p.weight.shape[0] for p in projections),
        scales=tuple(_scale(p.adapter) for p in projections),
        dropouts=tuple(p.adapter.dropout if p.adapter else 0.0 for p in projections),
        residual_scale=residual_scale,
        dtype=_compute_dtype(x),
        packed=tuple(p.weight for p in projections if isinstance(p.weight, NF4Weight)),
    )
    tensors: list[torch.Tensor | None] = []
    for p in projections:
        pair = (p.adapter.a, p.adapter.b) if p.adapter else (None, None)
        tensors += [p.weight if isinstance(p.weight, torch.Tensor) else None, p.bias, *pair]
    result: torch.Tensor = _LoraLinear.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        spec, x, residual, norm.weight if norm else None, fused_weight, *tensors
    )
    return result


def lora_linear_reference(
    x: torch.Tensor,
    projections: Sequence[Projection],
    *,
    norm: Norm | None = None,
    activation: Activation | None = None,
    residual: torch.Tensor | None = None,
    residual_scale: float = 1.0,
) -> torch.Tensor:
    """Compute `lora_linear` for one projection after another, without dropout."""
    if norm is not None:
        x = rms_norm_reference(x, norm.weight, norm.eps, norm.kind)
    if activation is not None:
        x = gated_reference(x, activation)
    outputs = []
    for p in projections:
        weight = nf4_reference(p.weight, x.dtype) if isinstance(p.weight, NF4Weight) else p.weight
        y = torch.nn.functional.linear(x, weight, p.bias)
        if p.adapter is not None:
            y = y + p.adapter.scale * (x @ p.adapter.a.T) @ p.adapter.b.T
        outputs.append(y)
    y = torch.cat(outputs, dim=-1) * residual_scale
    return y if residual is None else residual + y


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        spec: _Spec,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor | None,
        fused_weight: torch.Tensor | None,
        *tensors: torch.Tensor | None,
    ) -> torch.Tensor:
        biases, a, b = (_cast(tensors[i::4], spec.dtype) for i in (1, 2, 3))
        with torch.autocast(x.device.type, enabled=False):
            rows = x.flatten(0, -2)
            h, rstd = _prologue(spec, rows, norm_weight)
            h = h.to(spec.dtype)
            if spec.packed:
                weight = side_by_side(spec.packed, spec.dtype)
            else:
                weight = _whole(tensors[0::4]) if fused_weight is None else fused_weight
                weight = weight.to(spec.dtype)
            masks = [_dropout_mask(h, p) for p in spec.dropouts]
            h_a = _times_a(h, a, masks)
            fits = residual is not None and residual.dtype == spec.dtype
            if residual is not None and fits and _accumulates(spec, b):
                y, residual = torch.addmm(residual.flatten(0, -2), h, weight.T), None
            elif all(bias is not None for bias in biases):
                # The GEMM adds the bias before it rounds its result.
                y, biases = torch.addmm(torch.cat(biases), h, weight.T), [None] * len(biases)
            else:
                y = h @ weight.T
            for i, part in enumerate(y.split(spec.outs, dim=1)):
                if biases[i] is not None:
                    part.add_(biases[i])
                if b[i] is not None:
                    part.addmm_(h_a[i], b[i].T, alpha=spec.scales[i])
            if residual is not None:
                out = y if fits else None
                y = torch.add(residual.flatten(0, -2), y, alpha=spec.residual_scale, out=out)
        kept = None if spec.packed else weight
        ctx.save_for_backward(rows, rstd, norm_weight, kept, *a, *b, *h_a, *masks)
        ctx.spec, ctx.shape = spec, x.shape
        # Return a view only if necessary, because the next operation may work in place.
        return y if x.dim() == 2 else y.unflatten(0, x.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        spec: _Spec = ctx.spec
        n = len(spec.outs)
        rows, rstd, norm_weight, weight, *rest = ctx.saved_tensors
        a, b, h_a, masks = (rest[i * n : (i + 1) * n] for i in range(4))
        _, need_x, need_residual, need_norm, _, *need = ctx.needs_input_grad
        need_weight, need_bias, need_a, need_b = (need[i::4] for i in range(4))

        d = dy.flatten(0, -2).to(spec.dtype)
        if spec.residual_scale != 1.0:
            d = d * spec.residual_scale
        parts = d.split(spec.outs, dim=1)
        whole_e, e = _times_b(parts, b, spec.scales)

        h: Any = None
        dx: Any = None
        d_norm = None
        if need_x or need_norm:
            dh = d @ (side_by_side(spec.packed, spec.dtype) if spec.packed else weight)
            _add_times_a(dh, whole_e, e, a, masks)
            h, dx, d_norm = _prologue_backward(spec, rows, rstd, norm_weight, dh, need_norm)
        if h is None and (any(need_a) or any(need_weight)):
            h = _rebuilt(spec, rows, rstd, norm_weight)
        if h is not None:
            h = h.to(spec.dtype)
        d_a = _a_gradients(whole_e, e, h, masks) if any(need_a) else [None] * n
        d_weight = (d.T @ h).split(spec.outs) if any(need_weight) else [None] * n
        grads: list[torch.Tensor | None] = []
        for i in range(n):
            grads += [
                d_weight[i] if need_weight[i] else None,
                parts[i].sum(0) if need_bias[i] else None,
                d_a[i] if need_a[i] else None,
                (parts[i].T @ h_a[i]).mul_(spec.scales[i]) if need_b[i] else None,
            ]
        dx = dx.view(ctx.shape) if need_x else None
        return None, dx, dy if need_residual else None, d_norm, None, *grads


Tensors = Sequence[Any]  # each item is a projection's tensor, or None


def _cast(tensors: Tensors, dtype: torch.dtype) -> list[Any]:
    return [None if one is None else one.to(dtype) for one in tensors]


def _whole(weights: Tensors) -> torch.Tensor:
    """Concatenate the weights of the projections. A single weight is not copied, because a copy
    would stay in memory until the backward pass."""
    return weights[0] if len(weights) == 1 else torch.cat(list(weights))


def _accumulates(spec: _Spec, b: Tensors) -> bool:
    """Return True if the adapter outputs can be added directly to the residual. In half precision,
    a small adapter output would be lost by rounding. Therefore, the adapter output is added to the
    projection first."""
    exact = wide(spec.dtype) == spec.dtype or all(one is None for one in b)
    return exact and spec.residual_scale == 1.0


def _prologue(
    spec: _Spec, rows: torch.Tensor, norm_weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if spec.norm is not None and norm_weight is not None:
        return rms_norm_forward(rows, norm_weight, *spec.norm)
    if spec.activation is not None:
        return gated_forward(rows, spec.activation), None
    return rows, None


def _rebuilt(
    spec: _Spec, rows: torch.Tensor, rstd: torch.Tensor | None, norm_weight: torch.Tensor | None
) -> torch.Tensor:
    if spec.norm is not None and norm_weight is not None and rstd is not None:
        return rms_norm_apply(rows, norm_weight, rstd, spec.norm[1])
    return _prologue(spec, rows, norm_weight)[0]


def _prologue_backward(
    spec: _Spec,
    rows: torch.Tensor,
    rstd: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    dh: torch.Tensor,
    need_norm: bool,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """Return h, the gradient of x and the gradient of the norm's weight.

    h is None for RMSNorm, whose backward pass does not compute h."""
    if spec.norm is not None and norm_weight is not None and rstd is not None:
        kind = spec.norm[1]
        dx, d_norm = rms_norm_backward(dh, rows, norm_weight, rstd, kind, weight_grad=need_norm)
        return None, dx, d_norm
    if spec.activation is not None:
        h, dx = gated_backward(rows, dh, spec.activation, in_place=True)
        return h, dx, None
    return rows, dh, None


def _scale(adapter: Adapter | None) -> float:
    """Return the adapter's scale s / (1 - p).

    The factor 1 / (1 - p) is due to dropout with probability p. If the factor were applied to the
    input, a half-precision input would be rounded."""
    if adapter is None or adapter.dropout == 1.0:
        return 0.0
    return adapter.scale / (1.0 - adapter.dropout)


def _dropout_mask(h: torch.Tensor, p: float) -> torch.Tensor | None:
    """Return a bool mask of the inputs that dropout keeps.

    The mask uses the same random numbers as torch.nn.Dropout."""
    if p == 0.0:
        return None
    return torch.nn.functional.dropout(torch.ones_like(h), p) != 0


def _times_a(h: torch.Tensor, a: Tensors, masks: Tensors) -> list[Any]:
    """Return h A_i' for each projection.

    Without dropout, one matrix product computes the results of all projections."""
    present = [one for one in a if one is not None]
    if not present or any(mask is not None for mask in masks):
        return [
            None if one is None else _masked(h, mask) @ one.T
            for one, mask in zip(a, masks, strict=True)
        ]
    columns = iter((h @ torch.cat(present).T).split([len(one) for one in present], dim=1))
    return [None if one is None else next(columns) for one in a]


def _times_b(parts: Tensors, b: Tensors, scales: Sequence[float]) -> tuple[torch.Tensor, list[Any]]:
    """Return all e_i = s_i d_i B_i in one tensor [T, sum of ranks], and a view of each e_i."""
    ranks = [0 if one is None else one.shape[1] for one in b]
    e = parts[0].new_empty(len(parts[0]), sum(ranks))
    columns = e.split(ranks, dim=1)
    for part, one, scale, column in zip(parts, b, scales, columns, strict=True):
        if one is not None:
            torch.addmm(column, part, one, beta=0, alpha=scale, out=column)
    return e, [None if one is None else column for one, column in zip(b, columns, strict=True)]


def _add_times_a(
    dh: torch.Tensor, whole_e: torch.Tensor, e: Tensors, a: Tensors, masks: Tensors
) -> None:
    present = [one for one in a if one is not None]
    if not present:
        return
    if all(mask is None for mask in masks):
        dh.addmm_(whole_e, torch.cat(present))
        return
    for one_e, one_a, mask in zip(e, a, masks, strict=True):
        if one_a is not None:
            dh.add_(_masked(one_e @ one_a, mask))


def _a_gradients(whole_e: torch.Tensor, e: Tensors, h: torch.Tensor, masks: Tensors) -> list[Any]:
    if any(mask is not None for mask in masks):
        return [
            None if one is None else one.T @ _masked(h, mask)
            for one, mask in zip(e, masks, strict=True)
        ]
    rows = iter((whole_e.T @ h).split([one.shape[1] for one in e if one is not None]))
    return [None if one is None else next(rows) for one in e]


def _masked(h: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return h if mask is None else h * mask
