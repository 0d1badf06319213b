"""Triton kernels of AdamW with error words (error_word.py) and with 8-bit moments (adamw_8bit.py).

The kernels do not check their arguments; the callers do. All tensors are flat and contiguous.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from .adamw import AdamW
from .dispatch import on_device_of
from .moment_codes import Moments

__all__ = ["launch_8bit", "launch_error_word"]

ELEMENTS = 1024  # per program
BLOCK = tl.constexpr(256)
"""Elements per block, the same as moment_codes.BLOCK."""
TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
@no_type_check
def _adamw(x, g, m, v, decay, step_size, one_minus_beta1, beta2, v_correction, eps):
    m += (g - m) * one_minus_beta1
    v = v * beta2 + (1.0 - beta2) * g * g
    x = x * decay - step_size * m / (tl.sqrt(v) / v_correction + eps)
    return x, m, v


@triton.jit
@no_type_check
def _error_word_kernel(
    upper,
    error,
    grad,
    m_state,
    v_state,
    size,
    decay,
    step_size,
    one_minus_beta1,
    beta2,
    v_correction,
    eps,
    found_inf,
    ELEMENTS: tl.constexpr,
):
    """Compute one AdamW step on bf16 weights and error words, the lower 16 bits of the fp32
    weights.

    `upper`: bits of the bf16 weights as int16. `found_inf`: None, or a pointer to a scalar. If the
    scalar at `found_inf` is 1, no tensor is changed."""
    if found_inf is not None:
        size = tl.where(tl.load(found_inf) == 0.0, size, 0)
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    mask = at < size
    bits = (tl.load(upper + at, mask=mask, other=0).to(tl.int32) << 16) + tl.load(
        error + at, mask=mask, other=0
    ).to(tl.int32)
    g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(m_state + at, mask=mask, other=0.0)
    v = tl.load(v_state + at, mask=mask, other=0.0)
    x = bits.to(tl.float32, bitcast=True)
    x, m, v = _adamw(x, g, m, v, decay, step_size, one_minus_beta1, beta2, v_correction, eps)
    bits = x.to(tl.int32, bitcast=True)
    tl.store(error + at, bits.to(tl.int16), mask=mask)
    tl.store(upper + at, ((bits + 32768) >> 16).to(tl.int16), mask=mask)
    tl.store(m_state + at, m, mask=mask)
    tl.store(v_state + at, v, mask=mask)


@triton.jit
@no_type_check
def _inverse(scale):
    return tl.where(scale < TINY, 0.0, 1.0 / tl.where(scale < TINY, 1.0, scale))


@triton.jit(do_not_specialize=["seed"])
@no_type_check
def _8bit_kernel(
    upper,
    m_code,
    m_scale,
    v_code,
    v_scale,
    grad,
    size,
    num_blocks,
    seed,
    decay,
    step_size,
    one_minus_beta1,
    beta2,
    v_correction,
    eps,
    found_inf,
    BLOCKS: tl.constexpr,
):
    """Compute one AdamW step with 8-bit moments. Each program updates BLOCKS blocks."""
    if found_inf is not None:
        keeps = tl.load(found_inf) == 0.0
        size, num_blocks = tl.where(keeps, size, 0), tl.where(keeps, num_blocks, 0)
    rows = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    row_mask = rows < num_blocks
    at = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = at < size
    g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    bits = tl.load(upper + at, mask=mask, other=0).to(tl.int32) << 16
    c = tl.load(m_code + at, mask=mask, other=0).to(tl.float32)
    m = c * tl.abs(c) * (tl.load(m_scale + rows, mask=row_mask, other=0.0) / 16129.0)[:, None]
    c = tl.load(v_code + at, mask=mask, other=0).to(tl.float32) / 255.0
    c = c * c
    v = c * c * tl.load(v_scale + rows, mask=row_mask, other=0.0)[:, None]
    x = bits.to(tl.float32, bitcast=True)
    x, m, v = _adamw(x, g, m, v, decay, step_size, one_minus_beta1, beta2, v_correction, eps)

    random = tl.randint(seed, at.to(tl.uint32)).to(tl.int32, bitcast=True)
    bits = x.to(tl.int32, bitcast=True) + (random & 0xFFFF)
    tl.store(upper + at, (bits >> 16).to(tl.int16), mask=mask)

    size_m = tl.abs(m)
    largest = tl.max(size_m, 1)
    largest = tl.where(largest < TINY, 0.0, largest)
    c = 127.0 * tl.minimum(tl.sqrt(size_m * _inverse(largest)[:, None]), 1.0)
    c = tl.floor(c + 0.5)
    tl.store(m_code + at, tl.where(m < 0, -c, c).to(tl.int8), mask=mask)
    tl.store(m_scale + rows, largest, mask=row_mask)

    largest = tl.max(v, 1)
    largest = tl.where(largest < TINY, 0.0, largest)
    share = v * _inverse(largest)[:, None]
    uniform = (random >> 16).to(tl.float32) * 1.52587890625e-05 + 0.5
    c = tl.floor(255.0 * tl.minimum(tl.sqrt(tl.sqrt(share)), 1.0) + uniform)
    c = tl.minimum(tl.maximum(c, tl.where(share > 0, 1.0, 0.0)), 255.0)
    tl.store(v_code + at, c.to(tl.uint8), mask=mask)
    tl.store(v_scale + rows, largest, mask=row_mask)


def launch_error_word(
    weight: torch.Tensor,
    error: torch.Tensor,
    grad: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    spec: AdamW,
    found_inf: torch.Tensor | None = None,
) -> None:
    size = weight.numel()
    if size == 0:
        return
    with on_device_of(weight):
        _error_word_kernel[(triton.cdiv(size, ELEMENTS),)](
            weight.view(torch.int16),
            error,
            grad,
            m,
            v,
            size,
            *_numbers(spec),
            found_inf,
            ELEMENTS=ELEMENTS,
            num_warps=4,
        )


def launch_8bit(
    weight: torch.Tensor,
    moments: Moments,
    grad: torch.Tensor,
    spec: AdamW,
    seed: int,
    found_inf: torch.Tensor | None = None,
) -> None:
    size = weight.numel()
    if size == 0:
        return
    blocks = len(moments.m_scale)
    with on_device_of(weight):
        _8bit_kernel[(triton.cdiv(blocks, ELEMENTS // BLOCK.value),)](
            weight.view(torch.int16),
            moments.m_code,
            moments.m_scale,
            moments.v_code,
            moments.v_scale,
            grad,
            size,
            blocks,
            seed | 1 << 62,  # always 64 bits: one compiled kernel works for all seeds
            *_numbers(spec),
            found_inf,
            BLOCKS=ELEMENTS // BLOCK.value,
            num_warps=4,
        )


def _numbers(spec: AdamW) -> tuple[float, ...]:
    """Return the kernels' scalar arguments. Differences such as 1 - beta1 are computed in double
    precision here, because the kernels compute in fp32."""
    return (
        spec.decay,
        spec.step_size,
        1.0 - spec.beta1,
        spec.beta2,
        spec.v_correction,
        spec.eps,
    )
