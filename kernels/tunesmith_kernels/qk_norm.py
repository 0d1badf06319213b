"""RMSNorm of the queries and keys in one tensor of q, k and v.

Qwen 3 and Gemma 3 normalise each head; the weights are [head_dim]. OLMo 2 normalises all heads
together; the weights are [heads * head_dim] and [kv_heads * head_dim]. The values v stay unchanged.
The formula is in rms_norm.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .rms_norm import NormKind, rms_norm_backward, rms_norm_forward, rms_norm_reference
from .segments import AttentionShape

__all__ = ["qk_norm", "qk_norm_reference"]


def qk_norm(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    kind: NormKind,
    shape: AttentionShape,
) -> torch.Tensor:
    """Normalise q and k in place and return qkv, [T, (heads + 2 kv_heads) head_dim].

    The queries and keys in qkv are **overwritten**. Therefore, the operation that produced qkv must
    not save qkv for its backward pass."""
    result: torch.Tensor = _QKNorm.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        qkv, q_weight, k_weight, eps, kind, shape
    )
    return result


def qk_norm_reference(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    kind: NormKind,
    shape: AttentionShape,
) -> torch.Tensor:
    """Return qkv with q and k normalised, as a new tensor."""
    q, k, v = qkv.split(_columns(shape), dim=1)
    pieces = [
        rms_norm_reference(x.unflatten(1, (-1, len(weight))), weight, eps, kind).flatten(1)
        for x, weight in ((q, q_weight), (k, k_weight))
    ]
    return torch.cat([*pieces, v], dim=1)


class _QKNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        eps: float,
        kind: NormKind,
        shape: AttentionShape,
    ) -> torch.Tensor:
        columns = _columns(shape)
        before = qkv[:, : columns[0] + columns[1]].clone()
        rstds = []
        for x, weight in zip(qkv.split(columns, dim=1), (q_weight, k_weight), strict=False):
            heads = x.unflatten(1, (-1, len(weight)))
            y, rstd = rms_norm_forward(heads, weight, eps, kind)
            heads.copy_(y)
            rstds.append(rstd)
        ctx.mark_dirty(qkv)
        ctx.save_for_backward(before, q_weight, k_weight, *rstds)
        ctx.kind, ctx.columns = kind, columns
        return qkv

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_qkv: torch.Tensor) -> Any:
        before, q_weight, k_weight, *rstds = ctx.saved_tensors
        out = d_qkv.clone()
        d_weights = []
        for i, weight in enumerate((q_weight, k_weight)):
            d, x, to = (
                whole.split(ctx.columns[: 3 if whole is not before else 2], dim=1)[i].unflatten(
                    1, (-1, len(weight))
                )
                for whole in (d_qkv, before, out)
            )
            need = ctx.needs_input_grad[1 + i]
            dx, d_weight = rms_norm_backward(d, x, weight, rstds[i], ctx.kind, weight_grad=need)
            to.copy_(dx)
            d_weights.append(d_weight)
        return out, *d_weights, None, None, None


def _columns(shape: AttentionShape) -> list[int]:
    return [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
