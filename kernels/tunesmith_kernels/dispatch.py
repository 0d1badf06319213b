"""Choice between the CPU path and the Triton path of an operation.

Triton kernels are in `*_triton.py` files. A kernel file is imported when its kernel is first used,
because triton is not installed with torch for CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch

__all__ = ["interpreted", "on_device_of", "uses_triton"]

_interpreted: ContextVar[bool] = ContextVar("interpreted", default=False)


def uses_triton(x: torch.Tensor) -> bool:
    """Return True for CUDA tensors, and for CPU tensors inside `interpreted()`."""
    return x.is_cuda or _interpreted.get()


@contextmanager
def interpreted() -> Iterator[None]:
    """Run Triton kernels on CPU tensors in Triton's interpreter, for tests.

    In the interpreter, each program of a kernel takes about 1 ms. Raises RuntimeError unless
    TRITON_INTERPRET=1 is in the environment. Triton reads TRITON_INTERPRET when a kernel file is
    first imported.
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
    """Make the device of `x` the current device, on which Triton runs its kernels. On a CPU, the
    call has no effect."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
