"""Fold an adapter into the weights that it adapts, and unfold it bit for bit.

Folding computes `W' = round(W + s B A)` in W's dtype. Subtracting `s B A` then restores almost all
elements of W. Folding saves the bits of the elements that subtraction does not restore. Unfolding
computes `W = round(W' - s B A)` and writes the saved bits, so W is exact.

Matrices are processed one at a time, in chunks of rows. Apart from the saved elements, folding thus
needs little extra memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tunesmith_kernels.lora import Adapter

from .protocol import RolloutError

_CHUNK = 1 << 24
"""Number of matrix elements that are processed at a time."""


class UnfoldError(RolloutError):
    """Raised if unfolding did not restore a weight. The weight must not be trained further."""


@dataclass(frozen=True)
class _SavedBits:
    """Saved elements of W in one chunk of rows: their indices and bits."""

    index: torch.Tensor
    bits: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class FoldFigures:
    weights: int
    """Number of elements in the folded weights."""
    saved: int
    """Number of elements whose bits were saved, because subtraction does not restore these
    elements."""
    saved_bytes: int


@contextmanager
def folded(pairs: Iterable[tuple[torch.Tensor, Adapter]]) -> Iterator[FoldFigures]:
    """Within this block, add each adapter to its weight [out, in].

    On exit, also after an error, the weights are restored bit for bit. Raises UnfoldError if a
    weight could not be restored."""
    done: list[tuple[torch.Tensor, Adapter, list[_SavedBits], int]] = []
    try:
        for weight, adapter in pairs:
            check = checksum(weight)
            done.append((weight, adapter, _fold(weight, adapter), check))
        saved = [part for _, _, parts, _ in done for part in parts]
        yield FoldFigures(
            weights=sum(weight.numel() for weight, *_ in done),
            saved=sum(len(part.index) for part in saved),
            saved_bytes=sum(t.numel() * t.element_size() for p in saved for t in (p.index, p.bits)),
        )
    finally:
        for weight, adapter, parts, check in reversed(done):
            _unfold(weight, adapter, parts)
            if checksum(weight) != check:
                raise UnfoldError(
                    "folding an adapter into a weight for a rollout changed the weight's bits: the "
                    "weight or the adapter was modified during the rollout"
                )


@torch.no_grad()
def _fold(weight: torch.Tensor, adapter: Adapter) -> list[_SavedBits]:
    saved = []
    for rows in _chunks(weight):
        part, delta = weight[rows], delta_rows(adapter, rows)
        new = (part.float() + delta).to(part.dtype)
        back = (new.float() - delta).to(part.dtype)
        bits = _bits(part)
        index = (_bits(back) != bits).flatten().nonzero()[:, 0].to(torch.int32)
        saved.append(_SavedBits(index, bits.flatten()[index]))
        part.copy_(new)
    return saved


@torch.no_grad()
def _unfold(weight: torch.Tensor, adapter: Adapter, saved: list[_SavedBits]) -> None:
    for rows, chunk in zip(_chunks(weight), saved, strict=True):
        part, delta = weight[rows], delta_rows(adapter, rows)
        back = (part.float() - delta).to(part.dtype)
        _bits(back).view(-1)[chunk.index] = chunk.bits
        part.copy_(back)


def delta_rows(adapter: Adapter, rows: slice = slice(None)) -> torch.Tensor:
    """Return the given rows of `s B A`: [n, in] in fp32."""
    b, a = adapter.b[rows].float(), adapter.a.float()
    return torch.mm(b, a).mul_(adapter.scale)


def _chunks(weight: torch.Tensor) -> list[slice]:
    rows = max(1, _CHUNK // weight.shape[1])
    return [slice(start, start + rows) for start in range(0, weight.shape[0], rows)]


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32}[x.element_size()])


def checksum(weight: torch.Tensor) -> int:
    """Read the bits of each element as an integer, and return the sum of these integers."""
    return int(sum(_bits(weight[rows]).sum(dtype=torch.int64) for rows in _chunks(weight)))
