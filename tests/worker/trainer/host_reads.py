"""Counts the places in the code that read tensor values on the host. On a GPU, each such read waits
for the device. Also works on a CPU, where all watched tensors count as being on a GPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

Untyped = Any  # Any: torch does not type dispatch

_READS = {
    "_local_scalar_dense",  # item, bool, int, float
    "item",  # the same in inference mode
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
}
"""Operators that return a number, or a tensor whose size depends on values."""
_METHODS = ("tolist", "numpy", "cpu", "__array__")
"""Methods that read a CPU tensor without an operator."""


class HostReads(TorchDispatchMode):
    """While active, counts reads by caller. The caller is the nearest `file.py:function` outside
    torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None
    ) -> Untyped:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
        )
        by_lengths = func is torch.ops.aten.repeat_interleave.Tensor and not (
            kwargs and kwargs.get("output_size")
        )
        if name in _READS or by_mask or by_lengths:
            self.found[_who(name)] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def watched(reads: HostReads) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, reads:
        for method in _METHODS:
            patch.setattr(torch.Tensor, method, _telling(getattr(torch.Tensor, method), reads))
        yield


def _telling(method: Untyped, reads: HostReads) -> Untyped:
    def told(*arguments: Untyped, **named: Untyped) -> Untyped:
        reads.found[_who(method.__name__)] += 1
        return method(*arguments, **named)

    return told


def _who(what: str) -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "torch" not in path.parts and path != Path(__file__):
            return f"{path.parent.name}/{path.name}:{frame.f_code.co_name} ({what})"
        frame = frame.f_back
    return what
