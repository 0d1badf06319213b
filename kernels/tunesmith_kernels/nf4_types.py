"""Tensors of a 4-bit NormalFloat weight: packed values, codebook and scales.

The formulas are in nf4.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["CODE", "SCALES_BLOCK", "NF4Scales", "NF4Weight"]

CODE = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
SCALES_BLOCK = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class NF4Scales:
    """Constants to dequantise block scales that are quantised to 8 bits."""

    code: torch.Tensor
    """Codebook of the quantised block scales, [256] fp32."""
    absmax: torch.Tensor
    """Second-level scales, one for each 256 block scales: [blocks / 256, rounded up] fp32."""
    offset: torch.Tensor
    """fp32 scalar that is added to each dequantised block scale."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NF4Weight:
    """An NF4 weight."""

    packed: torch.Tensor
    """4-bit codes of the weights, two in each byte: [weights / 2, rounded up] uint8."""
    absmax: torch.Tensor
    """Scale of each block: [blocks] fp32, or uint8 if `scales` is set."""
    block: int
    """Number of weights per block, a power of two."""
    shape: tuple[int, int]
    """Shape of the weight, (out, in)."""
    scales: NF4Scales | None = None
