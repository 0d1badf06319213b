"""Rotary position embedding (RoPE) of queries and keys, and its gradient.

Let a and b be the two halves of the first R elements of a head. Let c and s be the cosines and
sines of the row's position:

    a' = a c - b s         b' = b c + a s         elements from R on are unchanged

The rotation is computed in fp32. The layout of the rotation is the same as in `rotate_half` of
transformers. The gradient is the same rotation with -s instead of s. The tables of cosines and
sines may contain a factor (YaRN's attention factor), which multiplies the result and the gradient.
RoPE is from Su et al., "RoFormer", https://arxiv.org/abs/2104.09864.

Shapes use these symbols: T rows, n heads, Hq query heads, Hk key heads, head size D, R <= D rotated
elements, and P rows of a table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .dispatch import uses_triton
from .tiles import row_tiles, rows_per_tile, wide

__all__ = ["rope", "rope_", "rope_reference", "rope_table"]


def rope_table(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert transformers' cos and sin to contiguous fp32 tables [T, R/2] or [B T, R/2].

    Row i of a table is for token i of the flattened batch. The arguments `cos` and `sin` are [T,
    R], [1, T, R] or [B, T, R], and the two halves of their last dimension are identical."""
    half = cos.shape[-1] // 2
    cos, sin = (x[..., :half].float().reshape(-1, half).contiguous() for x in (cos, sin))
    return cos, sin


def rope_reference(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rotated x [T, n, D] as a new tensor.

    Without `positions`, the tables `cos` and `sin` are [T, R/2]. With `positions` [T], the tables
    are [P, R/2], where P is the number of positions in the tables."""
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos[:, None], sin[:, None]
    half = cos.shape[-1]
    a, b = x[..., : 2 * half].to(wide(x.dtype)).chunk(2, -1)
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    return torch.cat([rotated, x[..., 2 * half :]], -1)


def rope_(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    positions: torch.Tensor | None = None,
    inverse: bool = False,
) -> torch.Tensor:
    """Rotate x [T, n, D] in place and return x.

    In memory, there may be gaps between rows and between heads.

    Without `positions`, the tables `cos` and `sin` are [T, R/2]. With `positions` [T] int64, the
    tables are [P, R/2]. If `inverse` is True, the angles are negated: this rotates gradients back.
    Autograd does not record this rotation. Raises ValueError for wrong shapes. A position outside
    the table raises IndexError on a CPU; Triton does not check positions.
    """
    _check(x, cos, sin, positions)
    if x.stride(-1) != 1 and x.shape[-1] != 1:
        raise ValueError("the last dimension of x must be contiguous to be rotated in place")
    sin = -sin if inverse else sin
    if uses_triton(x):
        from .rope_triton import launch

        launch([x], [x], cos, sin, positions)
    else:
        _rotate_cpu(x, x, cos, sin, positions)
    return x


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rotated q [T, Hq, D] and k [T, Hk, D] as new tensors. The results are
    differentiable once, in q and k.

    The tables `cos` and `sin` have the same shapes as in `rope_`, and get no gradient.
    """
    for x in (q, k):
        _check(x, cos, sin, positions)
    rotated: tuple[torch.Tensor, torch.Tensor] = _Rope.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        q, k, cos, sin, positions
    )
    return rotated


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(cos, sin, positions)
        return _rotated([q, k], cos, sin, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin, positions = ctx.saved_tensors
        return (*_rotated([dq, dk], cos, -sin, positions), None, None, None)


def _rotated(
    tensors: list[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    tensors = [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]
    outs = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]
    if uses_triton(tensors[0]):
        from .rope_triton import launch

        launch(tensors, outs, cos, sin, positions)
    else:
        for x, out in zip(tensors, outs, strict=True):
            _rotate_cpu(x, out, cos, sin, positions)
    return tuple(outs)


def _check(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None
) -> None:
    rows = cos.shape[0] if positions is None else positions.shape[0]
    if (
        x.dim() != 3
        or cos.dim() != 2
        or sin.shape != cos.shape
        or rows != x.shape[0]
        or not 2 <= 2 * cos.shape[1] <= x.shape[2]
    ):
        raise ValueError(
            "x must be [T, n, D] and cos and sin [T, R/2] (with positions [T]: [P, R/2]), "
            f"2 <= R <= D; got {list(x.shape)}, {list(cos.shape)}, {list(sin.shape)}"
            + ("" if positions is None else f" and positions {list(positions.shape)}")
        )


def _rotate_cpu(
    x: torch.Tensor,
    out: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
) -> None:
    """Rotate x [T, n, D] and write the result to `out`. `out` and `x` may be the same tensor.

    The rotation is computed as `[a, b] * [c, c] + [b, a] * [-s, s]`, in operations on whole heads.
    """
    num_rows, heads, size = x.shape
    half = cos.shape[1]
    if out is not x and 2 * half < size:
        out[..., 2 * half :] = x[..., 2 * half :]
    cosines, sines = torch.cat([cos, cos], 1)[:, None], torch.cat([-sin, sin], 1)[:, None]
    row_elements = 2 * half * heads
    rows = rows_per_tile(num_rows, row_elements)
    scratch = x.new_empty(2, rows, heads, 2 * half, dtype=wide(x.dtype))
    for tile in row_tiles(num_rows, row_elements):
        index = tile if positions is None else positions[tile]
        x_tile, out_tile = x[tile, :, : 2 * half], out[tile, :, : 2 * half]
        swapped, converted = scratch[:, : x_tile.shape[0]]
        x_wide = x_tile if x.dtype == scratch.dtype else converted.copy_(x_tile)
        swapped[..., :half] = x_wide[..., half:]
        swapped[..., half:] = x_wide[..., :half]
        c, s = cosines[index], sines[index]
        if out.dtype == scratch.dtype:
            torch.mul(x_wide, c, out=out_tile).addcmul_(swapped, s)
        else:
            out_tile.copy_(x_wide.mul_(c).addcmul_(swapped, s))
