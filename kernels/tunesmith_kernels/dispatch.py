"""One rule for the path that a tensor takes. Knows no operation, and does not import triton.

Kernels stand in `*_triton.py` files, imported when the first tensor takes that path: torch's CUDA
wheels bring triton, its CPU wheel does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch

__all__ = ["interpreted", "on_device_of", "uses_triton"]

_interpreted: ContextVar[bool] = ContextVar("interpreted", default=False)


def uses_triton(x: torch.Tensor) -> bool:
    """Triton for CUDA tensors, and for CPU tensors inside `interpreted()`; else torch."""
    return x.is_cuda or _interpreted.get()


@contextmanager
def interpreted() -> Iterator[None]:
    """CPU tensors take the Triton path, run by triton's interpreter (about 1 ms a program).

    For tests. Raises RuntimeError without TRITON_INTERPRET=1 in the environment, which triton reads
    when a kernel file is first imported.
    """
    from triton import knobs

    if not knobs.runtime.interpret:
        raise RuntimeError("set TRITON_INTERPRET=1 to run Triton kernels on a CPU")
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def on_device_of(x: torch.Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device; this makes it that of `x` (nothing on a CPU)."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
