"""Layout of a batch, recorded on the host before the batch is copied to the device.

To read a batch's layout from the device, the host would have to wait until the device finishes all
launched work.

The caller sets the layout of a batch around its forward pass. If the caller sets no layout, patches
read the layout from the batch's tensors on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch

from tunesmith_kernels.segments import Prefixes


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Pairs of a hidden state and a token to score, used instead of a batch's labels.

    Several tokens may use the same hidden state. All tensors are on the batch's device."""

    sources: torch.Tensor
    """Flat index of each pair's hidden state in the batch: int64 [N]."""
    targets: torch.Tensor
    """Token id of each pair: int64 [N]."""
    temperature: float
    """Temperature that divides the logits."""
    entropy: bool | Literal["grad"]
    """If True, compute the entropy; if "grad", compute the entropy with its gradient."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    bounds: tuple[int, ...] | None
    """Start of each packed row in the sequence, then the length of the sequence; None for padded
    rows."""
    labelled: torch.Tensor | None = None
    """Flat indices of the labelled positions in `labels[:, 1:]`: int64 [N] on the batch's device.
    None if `scored` is set."""
    scored: ScoredTokens | None = None
    prefixes: Prefixes | None = None
    """Prefixes shared by packed rows: a later row also attends to the prefix tokens of an earlier
    row. None if no rows share a prefix."""


_current: ContextVar[BatchLayout | None] = ContextVar("batch_layout", default=None)


def current_layout() -> BatchLayout | None:
    """Return the layout of the current forward; None if the caller set none."""
    return _current.get()


@contextmanager
def batch_layout(layout: BatchLayout | None) -> Iterator[None]:
    token = _current.set(layout)
    try:
        yield
    finally:
        _current.reset(token)
