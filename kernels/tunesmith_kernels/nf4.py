"""Dequantisation of 4-bit NormalFloat (NF4) weights in the storage format of bitsandbytes. The
weights are:

    w[i] = code[c_i] a[i // B]          c_i: the i-th 4 bits, the upper half of each byte first

Each block of B weights has one scale a in fp32. The scales may also be quantised to 8 bits:

    a[j] = code2[b_j] a2[j // 256] + offset

Each weight is computed in fp32 and rounded once, so the weights have the same bits as the weights
of bitsandbytes. NF4 is defined in "QLoRA" (Dettmers et al., https://arxiv.org/abs/2305.14314),
section 3 and appendix E.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .dispatch import uses_triton
from .nf4_types import CODE, SCALES_BLOCK, NF4Weight
from .tiles import row_tiles

__all__ = [
    "nf4_dequantize",
    "nf4_reference",
    "side_by_side",
]


def nf4_reference(weight: NF4Weight, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [out, in] in `dtype`, computed in plain torch."""
    size = weight.shape[0] * weight.shape[1]
    code = torch.tensor(CODE, device=weight.packed.device)
    nibbles = torch.stack([weight.packed >> 4, weight.packed & 15], dim=1).flatten()[:size]
    absmax = _absmax(weight).repeat_interleave(weight.block)[:size]
    return (code[nibbles.long()] * absmax).to(dtype).view(weight.shape)


def nf4_dequantize(
    weight: NF4Weight, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the weight [out, in] in `dtype`. If `out` is given, the weight is written to `out`,
    which must be contiguous.

    Raises ValueError for inconsistent sizes.
    """
    _check(weight)
    if out is None:
        out = torch.empty(weight.shape, dtype=dtype, device=weight.packed.device)
    flat = out.view(-1)
    if uses_triton(weight.packed):
        from .nf4_triton import launch

        launch(weight, flat)
    else:
        _dequantize_cpu(weight, flat)
    return out


def side_by_side(weights: Sequence[NF4Weight], dtype: torch.dtype) -> torch.Tensor:
    """Dequantise weights of the same input size into one tensor [sum of outs, in]."""
    outs = [weight.shape[0] for weight in weights]
    whole = torch.empty(
        sum(outs), weights[0].shape[1], dtype=dtype, device=weights[0].packed.device
    )
    for weight, part in zip(weights, whole.split(outs), strict=True):
        nf4_dequantize(weight, dtype, part)
    return whole


def _absmax(weight: NF4Weight) -> torch.Tensor:
    """Return the scales of the blocks, [blocks] fp32.

    As in bitsandbytes, code times absmax is rounded before the offset is added."""
    scales = weight.scales
    if scales is None:
        return weight.absmax
    wide = scales.absmax.repeat_interleave(SCALES_BLOCK)[: len(weight.absmax)]
    return scales.code[weight.absmax.long()] * wide + scales.offset


def _dequantize_cpu(weight: NF4Weight, out: torch.Tensor) -> None:
    """Dequantise into `out` [weights].

    Each byte contains two weights; one table lookup returns both."""
    code, half = torch.tensor(CODE), weight.block // 2
    pairs = torch.stack([code.repeat_interleave(16), code.repeat(16)], dim=1)
    absmax = _absmax(weight)
    for tile in row_tiles(len(absmax), weight.block):
        packed = weight.packed[tile.start * half : tile.stop * half]
        to = out[tile.start * weight.block : tile.stop * weight.block]
        values = pairs.index_select(0, packed.int()).view(-1)[: len(to)]
        whole = len(to) // weight.block
        body = values[: whole * weight.block].view(whole, weight.block)
        body.mul_(absmax[tile][:whole, None])
        values[whole * weight.block :].mul_(absmax[tile.stop - 1])
        to.copy_(values)


def _check(weight: NF4Weight) -> None:
    size = weight.shape[0] * weight.shape[1]
    blocks = -(-size // weight.block)
    scales = weight.scales
    wanted = torch.float32 if scales is None else torch.uint8
    if weight.packed.shape != (-(-size // 2),) or weight.packed.dtype != torch.uint8:
        raise ValueError(
            f"packed must be uint8 [{-(-size // 2)}] for weights {list(weight.shape)}, got "
            f"{weight.packed.dtype} {list(weight.packed.shape)}"
        )
    if weight.absmax.shape != (blocks,) or weight.absmax.dtype != wanted:
        raise ValueError(
            f"absmax must be {wanted} [{blocks}], got {weight.absmax.dtype} "
            f"{list(weight.absmax.shape)}"
        )
    if scales is not None and scales.absmax.shape != (-(-blocks // SCALES_BLOCK),):
        raise ValueError(
            f"the scales' absmax must be [{-(-blocks // SCALES_BLOCK)}], got "
            f"{list(scales.absmax.shape)}"
        )
