"""Triton kernel for rope.py. One launch rotates queries and keys, optionally in place.

The kernel does not check its arguments; the callers do. The last dimension of each tensor is
contiguous.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from .dispatch import on_device_of

__all__ = ["launch"]


@triton.jit
@no_type_check
def _rope_kernel(
    q,
    k,
    q_out,
    k_out,
    cos,
    sin,
    positions,
    num_q_heads,
    num_heads,
    half,
    size,
    q_row,
    q_head,
    k_row,
    k_head,
    q_out_row,
    q_out_head,
    k_out_row,
    k_out_head,
    POSITIONS: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Rotate one token per program. The token's cosines and sines are read once for all heads.

    If the rotation is not in place, REST is above 0. With REST above 0, the kernel also copies the
    elements that are not rotated, in a block of REST elements for each head.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, HALF)
    column_mask = columns < half
    table_row = tl.load(positions + row).to(tl.int64) if POSITIONS else row
    c = tl.load(cos + table_row * half + columns, mask=column_mask, other=0.0)[None, :]
    s = tl.load(sin + table_row * half + columns, mask=column_mask, other=0.0)[None, :]
    for first_head in range(0, num_heads, HEADS):
        heads = first_head + tl.arange(0, HEADS).to(tl.int64)
        in_q = heads < num_q_heads
        in_k = (heads >= num_q_heads) & (heads < num_heads)
        q_mask = in_q[:, None] & column_mask[None, :]
        k_mask = in_k[:, None] & column_mask[None, :]
        k_heads = heads - num_q_heads
        q_in = row * q_row + heads[:, None] * q_head + columns[None, :]
        k_in = row * k_row + k_heads[:, None] * k_head + columns[None, :]
        q_to = row * q_out_row + heads[:, None] * q_out_head + columns[None, :]
        k_to = row * k_out_row + k_heads[:, None] * k_out_head + columns[None, :]
        a_q = tl.load(q + q_in, mask=q_mask, other=0.0).to(tl.float32)
        b_q = tl.load(q + q_in + half, mask=q_mask, other=0.0).to(tl.float32)
        a_k = tl.load(k + k_in, mask=k_mask, other=0.0).to(tl.float32)
        b_k = tl.load(k + k_in + half, mask=k_mask, other=0.0).to(tl.float32)
        a = tl.where(in_q[:, None], a_q, a_k)
        b = tl.where(in_q[:, None], b_q, b_k)
        first = a * c - b * s
        second = b * c + a * s
        tl.store(q_out + q_to, first, mask=q_mask)
        tl.store(q_out + q_to + half, second, mask=q_mask)
        tl.store(k_out + k_to, first, mask=k_mask)
        tl.store(k_out + k_to + half, second, mask=k_mask)
        if REST > 0:
            rest = tl.arange(0, REST)
            rest_mask = rest < size - 2 * half
            rest_q = in_q[:, None] & rest_mask[None, :]
            rest_k = in_k[:, None] & rest_mask[None, :]
            beyond = 2 * half + rest[None, :]
            q_in = row * q_row + heads[:, None] * q_head + beyond
            k_in = row * k_row + k_heads[:, None] * k_head + beyond
            q_to = row * q_out_row + heads[:, None] * q_out_head + beyond
            k_to = row * k_out_row + k_heads[:, None] * k_out_head + beyond
            tl.store(q_out + q_to, tl.load(q + q_in, mask=rest_q, other=0.0), mask=rest_q)
            tl.store(k_out + k_to, tl.load(k + k_in, mask=rest_k, other=0.0), mask=rest_k)


def launch(
    tensors: list[torch.Tensor],
    outs: list[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
) -> None:
    """Rotate q and k in one launch, or only q if `tensors` has one item."""
    q, k = tensors[0], tensors[-1]
    q_out, k_out = outs[0], outs[-1]
    num_rows, num_q_heads, size = q.shape
    num_heads = sum(x.shape[1] for x in tensors)
    half = cos.shape[1]
    if num_rows == 0 or num_heads == 0:
        return
    rest = 0 if q_out is q else size - 2 * half
    half_block = _power_of_two(half)
    heads_block = min(_power_of_two(num_heads), max(1, 2048 // half_block))
    with on_device_of(q):
        _rope_kernel[(num_rows,)](
            q,
            k,
            q_out,
            k_out,
            cos.contiguous(),
            sin.contiguous(),
            cos if positions is None else positions.contiguous(),
            num_q_heads,
            num_heads,
            half,
            size,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            q_out.stride(0),
            q_out.stride(1),
            k_out.stride(0),
            k_out.stride(1),
            POSITIONS=positions is not None,
            REST=_power_of_two(rest) if rest else 0,
            HEADS=heads_block,
            HALF=half_block,
            num_warps=4,
        )


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
