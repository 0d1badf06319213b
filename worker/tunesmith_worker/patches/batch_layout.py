"""What the host knows of a batch before it goes to the device, so that nobody asks the device for
it: each such question waits until everything launched before it is done.

The trainer says it around a forward; patches look here, and ask the device where nothing was said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class BatchLayout:
    bounds: tuple[int, ...] | None
    """Where rows that stand end to end begin, and the number of tokens; None for padded rows."""
    labelled: torch.Tensor
    """int64 [N], on the batch's device: the flat places in labels[:, 1:] that have a label."""


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
