"""Triton kernels for rms_norm.py: forward pass and backward pass.

The kernels do not check their arguments; the callers do. Tensors are [R, n, H] with a contiguous
last dimension. The other dimensions may have any stride.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from .dispatch import on_device_of
from .tiles import block_shape, num_warps

__all__ = ["launch_backward", "launch_forward"]


@triton.jit
@no_type_check
def _forward_kernel(
    x,
    weight,
    y,
    rstd,
    eps,
    num_rows,
    heads,
    size,
    x_outer,
    x_inner,
    KIND: tl.constexpr,
    RSTD_GIVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute the forward pass of RMSNorm. Each program processes ROWS rows.

    x is [R, heads, H] with the strides x_outer and x_inner, so row i starts at element (i // heads)
    x_outer + (i % heads) x_inner."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    row_mask = rows < num_rows
    column_mask = columns < size
    mask = row_mask[:, None] & column_mask[None, :]
    x_rows = (rows // heads) * x_outer + (rows % heads) * x_inner
    x_block = tl.load(x + x_rows[:, None] + columns[None, :], mask=mask, other=0.0)
    factor = tl.load(weight + columns, mask=column_mask, other=0.0).to(tl.float32)
    x_wide = x_block.to(tl.float32)
    if RSTD_GIVEN:
        r = tl.load(rstd + rows, mask=row_mask, other=0.0)
    else:
        r = 1.0 / tl.sqrt(tl.sum(x_wide * x_wide, 1) / size + eps)
        tl.store(rstd + rows, r, mask=row_mask)
    normed = x_wide * r[:, None]
    if KIND == "llama":
        normed = normed.to(x_block.dtype).to(tl.float32)
    if KIND == "gemma":
        factor += 1.0
    y_block = normed * factor[None, :]
    tl.store(y + rows[:, None] * size + columns[None, :], y_block, mask=mask)


@triton.jit
@no_type_check
def _backward_kernel(
    dy,
    x,
    weight,
    rstd,
    dx,
    partial,
    num_rows,
    heads,
    size,
    dy_outer,
    dy_inner,
    x_outer,
    x_inner,
    blocks_per_program,
    GEMMA: tl.constexpr,
    WEIGHT_GRAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute the backward pass of RMSNorm. Each program processes blocks_per_program blocks of
    ROWS rows. Each program writes its part of dweight to its own row of `partial`, so the sum over
    programs always has the same order."""
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    column_mask = columns < size
    factor = tl.load(weight + columns, mask=column_mask, other=0.0).to(tl.float32)
    if GEMMA:
        factor += 1.0
    dweight = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for block in range(blocks_per_program):
        rows = (program * blocks_per_program + block) * ROWS + tl.arange(0, ROWS)
        row_mask = rows < num_rows
        mask = row_mask[:, None] & column_mask[None, :]
        outer, inner = rows // heads, rows % heads
        x_rows = outer * x_outer + inner * x_inner
        dy_rows = outer * dy_outer + inner * dy_inner
        x_block = tl.load(x + x_rows[:, None] + columns[None, :], mask=mask, other=0.0)
        dy_block = tl.load(dy + dy_rows[:, None] + columns[None, :], mask=mask, other=0.0)
        r = tl.load(rstd + rows, mask=row_mask, other=0.0)[:, None]
        normed = x_block.to(tl.float32) * r
        dy_wide = dy_block.to(tl.float32)
        g = dy_wide * factor[None, :]
        dx_block = r * (g - normed * (tl.sum(g * normed, 1) / size)[:, None])
        tl.store(dx + rows[:, None] * size + columns[None, :], dx_block, mask=mask)
        if WEIGHT_GRAD:
            dweight += dy_wide * normed
    if WEIGHT_GRAD:
        tl.store(partial + program * size + columns, tl.sum(dweight, 0), mask=column_mask)


def launch_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    rstd: torch.Tensor,
    kind: str,
    *,
    eps: float | None,
) -> None:
    num_rows, heads, size = x.shape[0] * x.shape[1], x.shape[1], x.shape[2]
    if num_rows == 0:
        return
    rows, columns = block_shape(size)
    with on_device_of(x):
        _forward_kernel[(triton.cdiv(num_rows, rows),)](
            x,
            weight.contiguous(),
            y,
            rstd,
            0.0 if eps is None else eps,
            num_rows,
            heads,
            size,
            x.stride(0),
            x.stride(1),
            KIND=kind,
            RSTD_GIVEN=eps is None,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=num_warps(rows * columns),
        )


def launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    kind: str,
    dx: torch.Tensor,
    weight_grad: bool,
) -> torch.Tensor | None:
    num_rows, heads, size = x.shape[0] * x.shape[1], x.shape[1], x.shape[2]
    rows, columns = block_shape(size)
    num_blocks = triton.cdiv(num_rows, rows)
    num_programs = min(num_blocks, _most_programs(x))
    partial = torch.empty(
        (num_programs if weight_grad else 0, size), dtype=torch.float32, device=x.device
    )
    if num_programs:
        blocks_per_program = triton.cdiv(num_blocks, num_programs)
        with on_device_of(x):
            _backward_kernel[(num_programs,)](
                dy,
                x,
                weight.contiguous(),
                rstd,
                dx,
                partial,
                num_rows,
                heads,
                size,
                dy.stride(0),
                dy.stride(1),
                x.stride(0),
                x.stride(1),
                blocks_per_program,
                GEMMA=kind == "gemma",
                WEIGHT_GRAD=weight_grad,
                ROWS=rows,
                COLUMNS=columns,
                num_warps=num_warps(rows * columns),
            )
    return partial.sum(0) if weight_grad else None


def _most_programs(x: torch.Tensor) -> int:
    """Return the maximum number of programs: 8 per multiprocessor. On a CPU, Triton's
    interpreter runs at most 2, so that each program of a test handles several blocks."""
    if not x.is_cuda:
        return 2
    return 8 * torch.cuda.get_device_properties(x.device).multi_processor_count
