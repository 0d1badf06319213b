"""Triton kernel for `read_rows` in head_rows.py. A program reads each of its rows twice.

The first pass over a row computes the row's statistics, block by block. The second pass reads the
row again from the L2 cache, and overwrites the logits. The formulas and symbols are in
head_rows.py.

Each multiprocessor runs only one program, which processes one row after another. The rows of more
programs would not fit in the L2 cache: a bf16 row of 128,256 logits takes 250 KiB, and the 132 rows
of 132 multiprocessors take 32 MiB. To hide the latency of loads, the loops of a program load blocks
in advance (num_stages).
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from .dispatch import on_device_of
from .head_types import LogitTransform, RowStatistics

__all__ = ["launch"]

_MASKED = tl.constexpr(-1e30)
_MOST_COLUMNS = 16384
_STAGES = tl.constexpr(3)


def launch(
    logits: torch.Tensor,
    targets: torch.Tensor,
    transform: LogitTransform,
    out: RowStatistics,
    *,
    gradient: bool,
    spread: torch.Tensor | None,
) -> None:
    """Run `read_rows`. The logits [n, V] are in bf16, fp16 or fp32, with contiguous columns."""
    rows, vocabulary = logits.shape
    if rows == 0:
        return
    block = min(_MOST_COLUMNS, triton.next_power_of_2(vocabulary))
    with on_device_of(logits):
        _row_kernel[(min(rows, _most_programs(logits)),)](
            rows,
            logits,
            logits.stride(0),
            targets,
            targets.stride(0),
            out.target,
            out.max_other,
            out.sum_other,
            out.mean_other,
            None if out.is_top1 is None else out.is_top1.view(torch.uint8),
            spread,
            0 if spread is None else spread.stride(0),
            vocabulary,
            transform.gain,
            transform.logit_scale,
            transform.softcap or 1.0,
            transform.temperature,
            HAS_SOFTCAP=transform.softcap is not None,
            HAS_ENTROPY=out.mean_other is not None,
            HAS_TOP1=out.is_top1 is not None,
            HAS_GRADIENT=gradient,
            HAS_SPREAD=spread is not None,
            BLOCK=block,
            num_warps=min(16, max(4, block // 512)),
        )


def _most_programs(logits: torch.Tensor) -> int:
    """Return the maximum number of programs: the number of multiprocessors. In the interpreter, the
    maximum is 2, so that tests run the loop over rows."""
    if not logits.is_cuda:
        return 2
    return torch.cuda.get_device_properties(logits.device).multi_processor_count


@triton.jit
@no_type_check
def _tanh(x):
    """Return tanh(x).

    For large x, the formula is (1 - e) / (1 + e) with e = exp(-2 abs(x)), and the sign of x. Near x
    = 0, the formula with e would lose precision, so a series with an error below 1e-8 is used."""
    square = x * x
    inner = -0.05396825 + square * 0.021869488
    series = x * (1.0 + square * (-0.33333333 + square * (0.13333333 + square * inner)))
    e = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - e) / (1.0 + e)
    return tl.where(square < 0.0625, series, tl.where(x < 0.0, -large, large))


@triton.jit
@no_type_check
def _transform(y, gain, scale, softcap, temperature, HAS_SOFTCAP: tl.constexpr):
    if HAS_SOFTCAP:
        return _tanh(y * scale / softcap) * softcap / temperature
    return y * gain


@triton.jit
@no_type_check
def _row_kernel(
    num_rows,
    logits,
    logits_stride,
    targets,
    targets_stride,
    target_out,
    max_out,
    sum_out,
    mean_out,
    top1_out,
    spread,
    spread_stride,
    vocabulary,
    gain,
    scale,
    softcap,
    temperature,
    HAS_SOFTCAP: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    HAS_TOP1: tl.constexpr,
    HAS_GRADIENT: tl.constexpr,
    HAS_SPREAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    for turn in range(tl.cdiv(num_rows - first, programs)):
        row = first.to(tl.int64) + turn * programs
        base = logits + row * logits_stride
        t = tl.load(targets + row * targets_stride)
        # A target outside the vocabulary gives NaN; the kernel reads no logit for it.
        inside = (t >= 0) & (t < vocabulary)
        y_t = tl.load(base + t, mask=inside, other=float("nan")).to(tl.float32)
        z_t = _transform(y_t, gain, scale, softcap, temperature, HAS_SOFTCAP)

        largest = tl.full((), _MASKED, tl.float32)
        before = tl.full((), _MASKED, tl.float32)
        total = tl.full((), 0.0, tl.float32)
        moment = tl.full((), 0.0, tl.float32)  # sum of exp(z - largest) (z - largest)
        for start in tl.range(0, vocabulary, BLOCK, num_stages=_STAGES):
            j = start + columns
            in_row = j < vocabulary
            other = in_row & (j != t)
            # `in_row` is the mask, not `other`, because vectorised loads need one mask value
            # per vector.
            y = tl.load(base + j, mask=in_row, other=0.0).to(tl.float32)
            z = _transform(y, gain, scale, softcap, temperature, HAS_SOFTCAP)
            z = tl.where(other, z, _MASKED)
            if HAS_TOP1:
                before = tl.maximum(before, tl.max(tl.where(j < t, z, _MASKED), axis=0))
            new_largest = tl.maximum(largest, tl.max(z, axis=0))
            shift = largest - new_largest
            rescale = tl.exp(shift)
            z = z - new_largest
            e = tl.where(other, tl.exp(z), 0.0)
            if HAS_ENTROPY:
                moment = rescale * (moment + shift * total) + tl.sum(e * z, axis=0)
            total = rescale * total + tl.sum(e, axis=0)
            largest = new_largest
        total = tl.where(total == 0.0, 1.0, total)  # the sum is 0 if the vocabulary has one token
        mean = moment / total
        tl.store(target_out + row, z_t)
        tl.store(max_out + row, largest)
        tl.store(sum_out + row, total)
        if HAS_ENTROPY:
            tl.store(mean_out + row, mean)
        if HAS_TOP1:
            tl.store(top1_out + row, ((z_t > before) & (z_t >= largest)).to(tl.uint8))

        if HAS_GRADIENT:
            for start in tl.range(0, vocabulary, BLOCK, num_stages=_STAGES):
                j = start + columns
                in_row = j < vocabulary
                y = tl.load(base + j, mask=in_row, other=0.0).to(tl.float32)
                z = _transform(y, gain, scale, softcap, temperature, HAS_SOFTCAP)
                other = in_row & (j != t)
                above = tl.where(other, z - largest, 0.0)
                pull = tl.where(other, tl.exp(above) / total, 0.0)
                if HAS_SOFTCAP:
                    tanh = z * temperature / softcap
                    pull = pull * (1.0 - tanh * tanh)
                if HAS_SPREAD:
                    away = (pull * (above - mean)).to(spread.dtype.element_ty)
                    tl.store(spread + row * spread_stride + j, away, mask=in_row)
                tl.store(base + j, pull.to(logits.dtype.element_ty), mask=in_row)
