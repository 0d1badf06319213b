"""Layout of a batch, known on the host before the batch goes to the device. Reading it back from
the device would wait for all work launched before.

The caller sets the layout around a forward. Without it, patches read the layout from the device.
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
    """Pairs of hidden states and tokens to score, in place of a batch's labels. A hidden state may
    score several tokens. Tensors are on the batch's device."""

    sources: torch.Tensor
    """int64 [N]: flat indices of the hidden states among the batch's tokens."""
    targets: torch.Tensor
    """int64 [N]: token ids."""
    temperature: float
    """Divides the logits."""
    entropy: bool | Literal["grad"]
    """True: compute the entropy; "grad": with a gradient."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    bounds: tuple[int, ...] | None
    """Start of each packed row, and the number of tokens; None for padded rows."""
    labelled: torch.Tensor | None = None
    """int64 [N], on the batch's device: flat indices of the labels in labels[:, 1:]; None if
    `scored` is set."""
    scored: ScoredTokens | None = None
    prefixes: Prefixes | None = None
    """Rows that attend to another row before their own tokens; None: no such rows."""


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
