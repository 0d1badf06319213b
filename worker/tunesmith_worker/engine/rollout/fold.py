"""An adapter folded into the weights that it adapts, and out again to the last bit.

W' = round(W + s B A) in W's dtype. Subtracting again gives W back for almost all elements; those
where it does not are found while folding and kept beside, so that unfolding is exact:

    W = round(W' - s B A), and the kept bits where that differs

One matrix at a time and some rows of it, so that little more than the kept elements is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tunesmith_kernels.lora import Adapter

from .protocol import RolloutError

_CHUNK = 1 << 24
"""Elements of a matrix at a time."""


class UnfoldError(RolloutError):
    """A weight did not come back as it was: train no further with it."""


@dataclass(frozen=True)
class _SavedBits:
    """Of one chunk of rows."""

    index: torch.Tensor
    bits: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class FoldFigures:
    weights: int
    """Elements folded into."""
    saved: int
    """Of those, how many subtracting does not bring back."""
    saved_bytes: int


@contextmanager
def folded(pairs: Iterable[tuple[torch.Tensor, Adapter]]) -> Iterator[FoldFigures]:
    """Inside, each weight [out, in] has its adapter's share in it; afterwards, also after an error,
    it has the bits it had. Raises UnfoldError where it has not."""
    done: list[tuple[torch.Tensor, Adapter, list[_SavedBits], int]] = []
    try:
        for weight, adapter in pairs:
            check = _checksum(weight)
            done.append((weight, adapter, _fold(weight, adapter), check))
        kept = [one for _, _, parts, _ in done for one in parts]
        yield FoldFigures(
            weights=sum(weight.numel() for weight, *_ in done),
            saved=sum(len(one.index) for one in kept),
            saved_bytes=sum(t.numel() * t.element_size() for k in kept for t in (k.index, k.bits)),
        )
    finally:
        for weight, adapter, parts, check in reversed(done):
            _unfold(weight, adapter, parts)
            if _checksum(weight) != check:
                raise UnfoldError(
                    "a weight that an adapter was folded into for a rollout did not come back bit "
                    "for bit: was the adapter or the weight changed meanwhile?"
                )


@torch.no_grad()
def _fold(weight: torch.Tensor, adapter: Adapter) -> list[_SavedBits]:
    kept = []
    for rows in _chunks(weight):
        part, delta = weight[rows], delta_rows(adapter, rows)
        new = (part.float() + delta).to(part.dtype)
        back = (new.float() - delta).to(part.dtype)
        bits = _bits(part)
        index = (_bits(back) != bits).flatten().nonzero()[:, 0].to(torch.int32)
        kept.append(_SavedBits(index, bits.flatten()[index]))
        part.copy_(new)
    return kept


@torch.no_grad()
def _unfold(weight: torch.Tensor, adapter: Adapter, kept: list[_SavedBits]) -> None:
    for rows, one in zip(_chunks(weight), kept, strict=True):
        part, delta = weight[rows], delta_rows(adapter, rows)
        back = (part.float() - delta).to(part.dtype)
        _bits(back).view(-1)[one.index] = one.bits
        part.copy_(back)


def delta_rows(adapter: Adapter, rows: slice = slice(None)) -> torch.Tensor:
    """s B A, some rows of it: [n, in] fp32."""
    b, a = adapter.b[rows].float(), adapter.a.float()
    return torch.mm(b, a).mul_(adapter.scale)


def _chunks(weight: torch.Tensor) -> list[slice]:
    rows = max(1, _CHUNK // weight.shape[1])
    return [slice(start, start + rows) for start in range(0, weight.shape[0], rows)]


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32}[x.element_size()])


def _checksum(weight: torch.Tensor) -> int:
    return int(sum(_bits(weight[rows]).sum(dtype=torch.int64) for rows in _chunks(weight)))
