"""Triton kernels for gated_activation.py: one for the forward and one for the backward pass.

The kernels do not check their arguments; the callers do. In memory, the elements of a row are
contiguous, and there may be gaps between rows.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from .dispatch import on_device_of

__all__ = ["launch_backward", "launch_forward"]


BLOCK = 1024  # elements of a row per program


@triton.jit
@no_type_check
def _activation_and_slope(gate, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        s = tl.sigmoid(gate)
        return gate * s, s * (1.0 + gate * (1.0 - s))
    if ACTIVATION == "gelu":
        phi = 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
        return gate * phi, phi + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    s = tl.sigmoid(1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate))
    slope = 1.5957691216057308 * (1.0 + 0.134145 * gate * gate)
    return gate * s, s + gate * s * (1.0 - s) * slope


@triton.jit
@no_type_check
def _forward_kernel(gate_up, out, size, gate_up_row, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    gate = tl.load(gate_up + row * gate_up_row + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * gate_up_row + size + columns, mask=mask, other=0.0).to(tl.float32)
    activated, _ = _activation_and_slope(gate, ACTIVATION)
    tl.store(out + row * size + columns, activated * up, mask=mask)


@triton.jit
@no_type_check
def _backward_kernel(
    gate_up,
    d_out,
    out,
    d_gate_up,
    size,
    gate_up_row,
    d_out_row,
    out_row,
    d_gate_up_row,
    OUT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the backward pass of a gated activation.

    Each program reads all its inputs before it writes, so `out` and `d_out` may be the same
    tensor."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    gate = tl.load(gate_up + row * gate_up_row + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * gate_up_row + size + columns, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(d_out + row * d_out_row + columns, mask=mask, other=0.0).to(tl.float32)
    activated, slope = _activation_and_slope(gate, ACTIVATION)
    if OUT:
        tl.store(out + row * out_row + columns, activated * up, mask=mask)
    tl.store(d_gate_up + row * d_gate_up_row + columns, d * up * slope, mask=mask)
    tl.store(d_gate_up + row * d_gate_up_row + size + columns, d * activated, mask=mask)


def launch_forward(gate_up: torch.Tensor, out: torch.Tensor, activation: str) -> None:
    num_rows, size = out.shape
    if out.numel() == 0:
        return
    with on_device_of(gate_up):
        _forward_kernel[(num_rows, triton.cdiv(size, BLOCK))](
            gate_up, out, size, gate_up.stride(0), ACTIVATION=activation, BLOCK=BLOCK, num_warps=4
        )


def launch_backward(
    gate_up: torch.Tensor,
    d_out: torch.Tensor,
    out: torch.Tensor | None,
    d_gate_up: torch.Tensor,
    activation: str,
) -> None:
    num_rows, size = d_out.shape
    if d_out.numel() == 0:
        return
    to = d_out if out is None else out
    with on_device_of(gate_up):
        _backward_kernel[(num_rows, triton.cdiv(size, BLOCK))](
            gate_up,
            d_out,
            to,
            d_gate_up,
            size,
            gate_up.stride(0),
            d_out.stride(0),
            to.stride(0),
            d_gate_up.stride(0),
            OUT=out is not None,
            ACTIVATION=activation,
            BLOCK=BLOCK,
            num_warps=4,
        )
