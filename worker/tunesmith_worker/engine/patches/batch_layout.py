"""What the host knows of a batch before it goes to the device, so that nobody asks the device for
it: each such question waits until everything launched before it is done.

The trainer says it around a forward; patches look here, and ask the device where nothing was said.
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
    """Which hidden states score which tokens: given, it stands in for a batch's labels, and one
    hidden state may score several tokens. Tensors on the batch's device."""

    sources: torch.Tensor
    """int64 [N]: flat places among the batch's tokens."""
    targets: torch.Tensor
    """int64 [N]: token ids."""
    temperature: float
    """Divides the logits."""
    entropy: bool | Literal["grad"]
    """Whether it is asked for, and with a gradient."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    bounds: tuple[int, ...] | None
    """Where rows that stand end to end begin, and the number of tokens; None for padded rows."""
    labelled: torch.Tensor | None = None
    """int64 [N], on the batch's device: the flat places in labels[:, 1:] that have a label; None
    where `scored` says what is scored."""
    scored: ScoredTokens | None = None
    prefixes: Prefixes | None = None
    """Rows that see another one before their own tokens; None: none does."""


_current: ContextVar[BatchLayout | None] = ContextVar("batch_layout", default=None)


def current_layout() -> BatchLayout | None:
    """Of the batch whose forward is running; None where the trainer said nothing."""
    return _current.get()


@contextmanager
def batch_layout(layout: BatchLayout | None) -> Iterator[None]:
    token = _current.set(layout)
    try:
        yield
    finally:
        _current.reset(token)
