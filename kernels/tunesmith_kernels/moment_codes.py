"""8-bit codes for AdamW's moments, with one fp32 scale per block.

A block has 256 elements; the last block may have fewer. A block of m has the scale s_m, its largest
|m|. A block of v has the scale s_v, its largest v. The codes c represent these values:

    m = s_m c |c| / 127^2        c in [-127, 127]     int8,  nearest
    v = s_v (c / 255)^4          c in [0, 255]        uint8, stochastic, c >= 1 where v > 0

Due to the powers of c, more codes represent small elements than large ones. Linear codes would
store most v of a block as 0, and AdamW's steps for v = 0 have no bound. To bound AdamW's steps, c
is at least 1 if v > 0. A step changes v by about a thousandth of v, and rounding to the nearest
code would lose this change. Stochastic rounding, c = floor(c' + u) with a random u in [0, 1), keeps
small changes of v on average. Block-wise 8-bit moments are from https://arxiv.org/abs/2110.02861. A
scale below the smallest normal fp32 number is stored as 0, and all elements of its block are then
decoded as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["BLOCK", "Moments", "decode_m", "decode_v", "encode_m", "encode_v", "num_blocks"]

BLOCK = 256
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Both AdamW moments of n weights, as codes and scales. Zero codes and zero scales represent
    zero moments."""

    m_code: torch.Tensor
    """Codes of m, [n] int8."""
    m_scale: torch.Tensor
    """Scales of m, [num_blocks(n)] fp32."""
    v_code: torch.Tensor
    """Codes of v, [n] uint8."""
    v_scale: torch.Tensor
    """Scales of v, [num_blocks(n)] fp32."""


def num_blocks(size: int) -> int:
    return -(-size // BLOCK)


def decode_m(
    code: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor
) -> None:
    """Decode m into `out`.

    The shapes are: code [n] int8, scale [blocks], out and scratch [blocks x BLOCK] fp32. `scratch`
    is memory for temporary values."""
    out[: len(code)].copy_(code)
    torch.abs(out, out=scratch)
    out.mul_(scratch).view(-1, BLOCK).mul_((scale / 127**2).unsqueeze(1))


def decode_v(code: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    """Decode v into `out`.

    The shapes are: code [n] uint8, scale [blocks], and out [blocks x BLOCK] fp32."""
    out[: len(code)].copy_(code)
    # The order matters: 255^4 times the inverse of a tiny scale would overflow fp32.
    out.mul_(1 / 255).square_().square_().view(-1, BLOCK).mul_(scale.unsqueeze(1))


def encode_m(
    m: torch.Tensor, code: torch.Tensor, scale: torch.Tensor, scratch: torch.Tensor
) -> None:
    """Encode m into code [n] and scale [blocks].

    Both `m` and `scratch` (memory for temporary values) are [blocks x BLOCK] fp32. The elements of
    `m` after element n are 0."""
    torch.abs(m, out=scratch)
    scratch.view(-1, BLOCK).mul_(_inverse_of_largest(scratch, scale))
    scratch.sqrt_().clamp_(max=1.0).mul_(127.0)
    code.copy_(scratch.copysign_(m).round_()[: len(code)])


def encode_v(
    v: torch.Tensor, code: torch.Tensor, scale: torch.Tensor, uniform: torch.Tensor
) -> None:
    """Encode v into code [n] and scale [blocks], and overwrite v.

    The shape of `v` is [blocks x BLOCK] fp32. The caller must set the elements of `v`
    after element n to 0. `uniform`:
    random numbers [n] in [0, 1)."""
    v.view(-1, BLOCK).mul_(_inverse_of_largest(v, scale))
    some = v[: len(code)] > 0
    v.sqrt_().sqrt_().clamp_(max=1.0).mul_(255.0)
    rounded = v[: len(code)].add_(uniform).floor_().clamp_(max=255.0)
    code.copy_(torch.maximum(rounded, some, out=rounded))


def _inverse_of_largest(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Write each block's largest element to scale [blocks], and return the inverses of the scales,
    [blocks, 1]. The inverse of 0 is set to 0."""
    torch.amax(x.view(-1, BLOCK), dim=1, out=scale)
    scale.masked_fill_(scale < _TINY, 0.0)
    return scale.reciprocal().masked_fill_(scale == 0.0, 0.0).unsqueeze(1)
