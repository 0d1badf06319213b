"""Memory that chat may use: the memory that training jobs do not need."""

from __future__ import annotations

from collections.abc import Mapping

import psutil
import torch

from tunesmith_worker.engine.memory.free_memory import host_free
from tunesmith_worker.engine.memory.retry import release_cached_memory
from tunesmith_worker.rundir.device_use import DeviceUse
from tunesmith_worker.rundir.process import return_freed_memory

from .device import Device

USABLE = {False: 0.5, True: 0.8}
"""Share of the free memory that one model may take. The key is True for a GPU. The share is lower
on a CPU, because other programs use the host's memory too."""
LEAST_FREE = 1 << 26
"""Minimum bytes that count as free, so that short prompts work on a full host."""
CACHE_SHARE = 0.25
"""Share of the free memory that cached keys and values of attention may take."""


def trainers_on(device: Device, uses: Mapping[str, DeviceUse]) -> dict[str, DeviceUse]:
    """Return the trainers on the device that chat uses; the keys are the trainers' names."""
    return {
        name: use
        for name, use in uses.items()
        if use.kind == "trainer" and use.gpu == device.gpu and use.stage
    }


def is_planning(trainer: DeviceUse) -> bool:
    """Return True while a trainer measures the free memory."""
    return trainer.bytes is None


def free_memory(device: Device, trainers: Mapping[str, DeviceUse]) -> int:
    """Return the bytes that chat may still take, without the memory that trainers will need."""
    if not device.is_gpu:
        return max(0, host_free() - sum(_growth(use) for use in trainers.values()))
    free, total = torch.cuda.mem_get_info(device.torch)
    own = torch.cuda.memory_allocated(device.torch)
    cached = torch.cuda.memory_reserved(device.torch) - own
    planned = sum(use.bytes or 0 for use in trainers.values())
    return max(0, min(free + cached, total - planned - own))


def _growth(trainer: DeviceUse) -> int:
    """Return how many more bytes a trainer will take, according to its memory plan."""
    try:
        resident = int(psutil.Process(trainer.pid).memory_info().rss)
    except psutil.Error:
        resident = 0
    return max(0, (trainer.bytes or 0) - resident)


def held_memory(device: Device) -> int:
    """Return the bytes of GPU memory that chat holds for its models; 0 on a CPU."""
    return torch.cuda.memory_reserved(device.torch) if device.is_gpu else 0


def release_memory() -> None:
    """Give the memory of unloaded models back to the system."""
    release_cached_memory()
    return_freed_memory()
