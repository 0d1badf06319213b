"""AdamW's moments in 8 bits, block by block, with a scale in fp32 for each.

Blocks of 256 elements, the last one shorter. With s the largest |m| (or v) of the block:

    m = s_m c |c| / 127^2        c in [-127, 127]     int8,  nearest
    v = s_v (c / 255)^4          c in [0, 255]        uint8, stochastic, c >= 1 where v > 0

The powers give small elements resolution: with a plain linear code most of a block's v would be 0
and their steps without bound, hence the 1 as well. v changes by a thousandth a step, which rounding
to the nearest code would lose; c = floor(c' + u), u uniform in [0, 1), keeps it in the mean.
Block-wise 8-bit moments: https://arxiv.org/abs/2110.02861. Scales below fp32's smallest normal
number count as 0, and so does their block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["BLOCK", "Moments", "decode_m", "decode_v", "encode_m", "encode_v", "num_blocks"]

BLOCK = 256
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Both moments of n weights; made of zeros, they stand for zeros."""

    m_code: torch.Tensor
    """[n] int8"""
    m_scale: torch.Tensor
    """[num_blocks(n)] fp32"""
    v_code: torch.Tensor
    """[n] uint8"""
    v_scale: torch.Tensor
    """[num_blocks(n)] fp32"""


def num_blocks(size: int) -> int:
    return -(-size // BLOCK)


def decode_m(
    code: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor
) -> None:
    """code [n] int8, scale [blocks], out and scratch [blocks x BLOCK] fp32."""
    out[: len(code)].copy_(code)
    torch.abs(out, out=scratch)
    out.mul_(scratch).view(-1, BLOCK).mul_((scale / 127**2).unsqueeze(1))


def decode_v(code: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    """code [n] uint8, scale [blocks], out [blocks x BLOCK] fp32."""
    out[: len(code)].copy_(code)
    # In this order: 255^4 times a tiny scale's inverse would leave fp32's range.
    out.mul_(1 / 255).square_().square_().view(-1, BLOCK).mul_(scale.unsqueeze(1))


def encode_m(
    m: torch.Tensor, code: torch.Tensor, scale: torch.Tensor, scratch: torch.Tensor
) -> None:
    """m and scratch [blocks x BLOCK] fp32, the tail zero: writes code [n] and scale [blocks]; m is
    lost."""
    torch.abs(m, out=scratch)
    scratch.view(-1, BLOCK).mul_(_inverse_of_largest(scratch, scale))
    scratch.sqrt_().clamp_(max=1.0).mul_(127.0)
    code.copy_(scratch.copysign_(m).round_()[: len(code)])


def encode_v(
    v: torch.Tensor, code: torch.Tensor, scale: torch.Tensor, uniform: torch.Tensor
) -> None:
    """v [blocks x BLOCK] fp32, the tail zero, uniform [n] in [0, 1): writes code [n] and scale
    [blocks]; v is lost."""
    v.view(-1, BLOCK).mul_(_inverse_of_largest(v, scale))
    some = v[: len(code)] > 0
    v.sqrt_().sqrt_().clamp_(max=1.0).mul_(255.0)
    rounded = v[: len(code)].add_(uniform).floor_().clamp_(max=255.0)
    code.copy_(torch.maximum(rounded, some, out=rounded))


def _inverse_of_largest(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Writes scale [blocks] and gives its inverse [blocks, 1], 0 where there is nothing."""
    torch.amax(x.view(-1, BLOCK), dim=1, out=scale)
    scale.masked_fill_(scale < _TINY, 0.0)
    return scale.reciprocal().masked_fill_(scale == 0.0, 0.0).unsqueeze(1)
