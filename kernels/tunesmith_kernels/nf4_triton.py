"""Triton kernel for nf4.py.

The kernel does not check its arguments; the callers do. All tensors are flat and contiguous.
"""

from __future__ import annotations

from functools import cache
from typing import no_type_check

import torch
import triton
import triton.language as tl

from .dispatch import on_device_of
from .nf4_types import CODE, SCALES_BLOCK, NF4Weight

__all__ = ["launch"]

BYTES = 2048  # per program: 16 per thread


@triton.jit
@no_type_check
def _dequantize_kernel(
    packed,
    absmax,
    code,
    scales_code,
    scales_absmax,
    offset,
    out,
    num_bytes,
    size,
    BLOCK: tl.constexpr,
    SCALES_BLOCK: tl.constexpr,
    NESTED: tl.constexpr,
    BYTES: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BYTES
    at = first + tl.arange(0, BYTES)
    mask = at < num_bytes
    byte = tl.load(packed + at, mask=mask, other=0).to(tl.int32)
    # A block has an even number of weights, so both weights of a byte are in one block.
    block = at * 2 // BLOCK
    if NESTED:
        index = tl.load(absmax + block, mask=mask, other=0).to(tl.int32)
        scale = tl.load(scales_code + index)
        scale *= tl.load(scales_absmax + block // SCALES_BLOCK, mask=mask, other=0.0)
        scale += tl.load(offset)
    else:
        scale = tl.load(absmax + block, mask=mask, other=0.0)
    upper = tl.load(code + (byte >> 4)) * scale
    lower = tl.load(code + (byte & 15)) * scale
    values = tl.interleave(upper, lower)
    to = first * 2 + tl.arange(0, 2 * BYTES)
    tl.store(out + to, values.to(out.dtype.element_ty), mask=to < size)


@cache
def _code_on(device: torch.device) -> torch.Tensor:
    return torch.tensor(CODE, device=device)


def launch(weight: NF4Weight, out: torch.Tensor) -> None:
    """Dequantise into out [weights]."""
    size = out.numel()
    if size == 0:
        return
    scales, code, num_bytes = weight.scales, _code_on(out.device), weight.packed.numel()
    with on_device_of(out):
        _dequantize_kernel[(triton.cdiv(num_bytes, BYTES),)](
            weight.packed,
            weight.absmax,
            code,
            code if scales is None else scales.code,
            code if scales is None else scales.absmax,
            code if scales is None else scales.offset,
            out,
            num_bytes,
            size,
            BLOCK=weight.block,
            SCALES_BLOCK=SCALES_BLOCK,
            NESTED=scales is not None,
            BYTES=BYTES,
            num_warps=4,
            enable_fp_fusion=False,  # bitsandbytes rounds the product before it adds the offset
        )
