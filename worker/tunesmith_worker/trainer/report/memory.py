"""Current and peak memory of the trainer process: main memory and GPU memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

from tunesmith_schema import PeakMemory

_PAGE = os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> PeakMemory:
    """Return the peak memory of this process since its start, without memory of the parent
    process."""
    if not torch.cuda.is_initialized():
        return PeakMemory(rss=_peak_rss())
    return PeakMemory(
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        device_total=torch.cuda.get_device_properties().total_memory,
        pinned=_pinned("peak"),
        rss=_peak_rss(),
    )


def memory_now() -> dict[str, float | None]:
    """Return the memory in use in bytes; the keys are names of metrics."""
    now: dict[str, float | None] = {"memory_rss": _rss()}
    if torch.cuda.is_initialized():
        stats = torch.cuda.memory_stats()
        now["memory_allocated"] = stats["allocated_bytes.all.current"]
        now["memory_reserved"] = stats["reserved_bytes.all.current"]
        now["memory_pinned"] = _pinned("current")
    return now


def _pinned(which: str) -> int:
    return int(torch.cuda.host_memory_stats().get(f"allocated_bytes.{which}", 0))


def _rss() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:  # not Linux
        return None


def _peak_rss() -> int:
    """Return the peak memory of this process. The value of getrusage may include the memory of the
    parent process, so getrusage is used only if /proc/self/status does not give the peak."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = next((line for line in lines if line.startswith("VmHWM:")), None)
    if peak is None:  # some sandboxes lack VmHWM
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(peak.split()[1]) * 1024
