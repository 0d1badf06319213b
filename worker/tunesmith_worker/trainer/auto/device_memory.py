"""GPU that this process uses, and the memory that it holds. `rundir.device_use` tells other
processes which GPU and how much memory this process uses."""

from __future__ import annotations

import psutil
import torch

from tunesmith_worker.rundir.device_use import gpu_name

CONTEXT_BYTES = 600 * 1024**2
"""Bytes of a process's CUDA context, without any tensors."""


def used_gpu() -> str | None:
    """Return the UUID of the GPU that this process trains on; None for the CPU."""
    if not torch.cuda.is_available():
        return None
    return gpu_name(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def held_bytes() -> int:
    """Return the bytes that this process holds on its GPU; without a GPU, in the host's memory."""
    if torch.cuda.is_available():
        return torch.cuda.memory_reserved() + CONTEXT_BYTES
    return int(psutil.Process().memory_info().rss)
