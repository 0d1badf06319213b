"""AdamW step on bf16 weights with 8-bit moments and stochastic rounding.

The step converts weights and moments to fp32, updates them by the formulas of adamw.py, and
converts them back. Stochastic rounding turns an fp32 weight x into a random bf16 weight w, whose
expected value is x:

    bits(w) = floor((bits(x) + r) / 2^16)        r uniform in 0 .. 2^16 - 1

Therefore, small updates are not lost on average (https://arxiv.org/abs/2010.06192, section 4). The
8-bit codes are defined in moment_codes.py. Each weight takes 2 bytes, and its two moments take 1
byte each. Each block of 256 weights takes 8 more bytes for its scales.

The random numbers depend only on `seed`, so a step can be repeated exactly. The CPU path and the
Triton path use different random numbers.
"""

from __future__ import annotations

import torch

from .adamw import AdamW, adamw_, adamw_reference_
from .dispatch import uses_triton
from .moment_codes import BLOCK, Moments, decode_m, decode_v, encode_m, encode_v, num_blocks
from .tiles import row_tiles, rows_per_tile

__all__ = ["adamw_8bit_", "adamw_8bit_reference_", "round_stochastically"]

_BUFFERS = 4


def round_stochastically(x: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """Round an fp32 tensor to bf16 stochastically.

    `random`: int32 random numbers in the shape of `x`. Only the lower 16 bits of `random` are
    used."""
    bits = x.contiguous().view(torch.int32) + (random & 0xFFFF)
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def adamw_8bit_reference_(
    weight: torch.Tensor,
    moments: Moments,
    grad: torch.Tensor,
    spec: AdamW,
    random: torch.Tensor,
) -> None:
    """Compute the same step as `adamw_8bit_`, line by line from the formulas.
    `random`: int32 random numbers [n]."""
    size, padded = len(weight), num_blocks(len(weight)) * BLOCK
    m, v, scratch = torch.zeros(3, padded)
    decode_m(moments.m_code, moments.m_scale, m, scratch)
    decode_v(moments.v_code, moments.v_scale, v)
    x = weight.float()
    adamw_reference_(x, grad.float(), m[:size], v[:size], spec)
    weight.copy_(round_stochastically(x, random))
    encode_m(m, moments.m_code, moments.m_scale, scratch)
    encode_v(v, moments.v_code, moments.v_scale, _uniform(random))


def adamw_8bit_(
    weight: torch.Tensor,
    moments: Moments,
    grad: torch.Tensor,
    spec: AdamW,
    seed: int,
    found_inf: torch.Tensor | None = None,
) -> None:
    """Compute one step in place.

    The dtypes are: weight [n] bf16, grad [n] bf16 or fp32. The seed is in [0, 2^62).

    `found_inf`: fp32 scalar on the device of `weight`. If `found_inf` is 1, weight and moments stay
    unchanged. Raises ValueError for a wrong dtype, shape or memory layout.
    """
    _check(weight, moments, grad)
    if uses_triton(weight):
        from .adamw_triton import launch_8bit

        launch_8bit(weight, moments, grad, spec, seed, found_inf)
        return
    if found_inf is not None and bool(found_inf):  # on a CPU: no synchronisation
        return
    size = weight.numel()
    blocks = num_blocks(size)
    generator = torch.Generator().manual_seed(seed)
    x, g, m, v = torch.empty(_BUFFERS, rows_per_tile(blocks, _BUFFERS * BLOCK) * BLOCK)
    draws = torch.empty((len(x) + 1) // 2, dtype=torch.int64)
    for tile in row_tiles(blocks, _BUFFERS * BLOCK):
        span = slice(tile.start * BLOCK, min(tile.stop * BLOCK, size))
        n, padded = span.stop - span.start, (tile.stop - tile.start) * BLOCK
        m[n:padded], v[n:padded] = 0.0, 0.0
        decode_m(moments.m_code[span], moments.m_scale[tile], m[:padded], g[:padded])
        decode_v(moments.v_code[span], moments.v_scale[tile], v[:padded])
        x[:n].copy_(weight[span])
        adamw_(x[:n], g[:n].copy_(grad[span]), m[:n], v[:n], spec)
        random = draws.random_(-(2**63), None, generator=generator).view(torch.int32)[:n]
        encode_m(m[:padded], moments.m_code[span], moments.m_scale[tile], g[:padded])
        encode_v(v[:padded], moments.v_code[span], moments.v_scale[tile], _uniform(random))
        bits = x[:n].view(torch.int32)
        bits.add_(random.bitwise_and_(0xFFFF)).bitwise_right_shift_(16)
        weight[span].view(torch.int16).copy_(bits)


def _uniform(random: torch.Tensor) -> torch.Tensor:
    return (random >> 16).float().mul_(2.0**-16).add_(0.5)


def _check(weight: torch.Tensor, moments: Moments, grad: torch.Tensor) -> None:
    size, blocks = weight.numel(), num_blocks(weight.numel())
    wanted = {
        "weight": (weight, (torch.bfloat16,), size),
        "grad": (grad, (torch.bfloat16, torch.float32), size),
        "m_code": (moments.m_code, (torch.int8,), size),
        "m_scale": (moments.m_scale, (torch.float32,), blocks),
        "v_code": (moments.v_code, (torch.uint8,), size),
        "v_scale": (moments.v_scale, (torch.float32,), blocks),
    }
    for name, (tensor, dtypes, length) in wanted.items():
        fits = tensor.shape == (length,) and tensor.is_contiguous()
        if tensor.dtype not in dtypes or not fits:
            raise ValueError(
                f"{name} must be {' or '.join(map(str, dtypes))} [{length}], got {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
