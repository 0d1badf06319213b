"""Reorder queries and keys for models whose RoPE rotates neighbouring elements.

GLM, Ernie 4.5, Helium and Cohere rotate the pairs (0, 1), (2, 3) and so on of a head's first R
elements. In rope.py, element i and element i + R/2 are a pair. To change from one layout to the
other, the even elements are moved before the odd elements:

    [a0 b0 a1 b1 ... | rest]  ->  [a0 a1 ... b0 b1 ... | rest]

Queries and keys are reordered in the same way, so their dot products, the attention scores, do not
change. Values keep their order. The gradient is reordered in the inverse way. RoPE is from Su et
al., "RoFormer", https://arxiv.org/abs/2104.09864. The CPU and the GPU use the same implementation
in torch, because the reordering only copies elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .segments import AttentionShape

__all__ = ["halves_of_pairs", "split_pairs", "split_pairs_reference"]


def split_pairs(qkv: torch.Tensor, rotary: int, shape: AttentionShape) -> torch.Tensor:
    """Reorder q and k in place and return qkv [T, (heads + 2 kv_heads) head_dim].

    `rotary`: R, the number of rotated elements of a head. The queries and keys in qkv are
    **overwritten**. Therefore, the operation that produced qkv must not save qkv for its backward
    pass."""
    result: torch.Tensor = _SplitPairs.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        qkv, rotary, shape
    )
    return result


def split_pairs_reference(qkv: torch.Tensor, rotary: int, shape: AttentionShape) -> torch.Tensor:
    """Return the reordered qkv as a new tensor, by indexing."""
    order = [*range(0, rotary, 2), *range(1, rotary, 2), *range(rotary, shape.head_dim)]
    heads = qkv.unflatten(1, (-1, shape.head_dim))
    qk, v = heads[:, : shape.rotated], heads[:, shape.rotated :]
    return torch.cat([qk[..., order], v], dim=1).flatten(1)


def halves_of_pairs(x: torch.Tensor) -> torch.Tensor:
    """Return a new tensor, in which the even elements of the last dimension come before the odd
    ones."""
    halves: torch.Tensor = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return halves


class _SplitPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: torch.Tensor, rotary: int, shape: AttentionShape) -> torch.Tensor:
        ctx.rotary, ctx.shape = rotary, shape
        ctx.mark_dirty(qkv)
        part = _rotated(qkv, rotary, shape)
        part.copy_(halves_of_pairs(part))
        return qkv

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_qkv: torch.Tensor) -> Any:
        out = d_qkv.clone()
        part = _rotated(out, ctx.rotary, ctx.shape)
        part.copy_(part.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2))
        return out, None, None


def _rotated(qkv: torch.Tensor, rotary: int, shape: AttentionShape) -> torch.Tensor:
    """Return a view [T, heads + kv_heads, R] of the elements that RoPE rotates."""
    heads: torch.Tensor = qkv.unflatten(1, (-1, shape.head_dim))
    return heads[:, : shape.rotated, :rotary]
