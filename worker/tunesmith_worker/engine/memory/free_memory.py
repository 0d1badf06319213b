"""Read free memory within the container's limits, and measure the device's speed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from .choose import FreeMemory, Speed

_CGROUP = Path("/sys/fs/cgroup")


def read_free_memory(device: torch.device, held: int) -> FreeMemory:
    """Read free memory. `held`: bytes of this process's tensors. On a CPU, the result includes
    `held`, because the memory plan also counts these tensors."""
    host = host_free()
    if device.type != "cuda":
        return FreeMemory(free=host + held, host_free=host, on_gpu=False)
    free, _ = torch.cuda.mem_get_info(device)
    return FreeMemory(
        free=free + torch.cuda.memory_reserved(device),
        host_free=host,
        on_gpu=True,
    )


def host_free(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes available on the host without swapping, within the memory limits of this process's
    control groups."""
    return min([int(psutil.virtual_memory().available), *_limits(root, own)])


def _limits(root: Path, own: Path) -> list[int]:
    """Remaining bytes of each memory limit that applies to this process: the limits of its control
    group and of all parent groups.

    The limits are read from cgroup version 2. With cgroup version 1, only the limit of the
    container is read."""
    left = []
    group = "/"
    if own.exists():
        for line in own.read_text(encoding="utf-8").splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                group = path
    here = root / group.strip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(root):
            break
        left += _left(folder / "memory.max", folder / "memory.current")
    left += _left(
        root / "memory" / "memory.limit_in_bytes", root / "memory" / "memory.usage_in_bytes"
    )
    return left


def _left(limit: Path, used: Path) -> list[int]:
    if not (limit.exists() and used.exists()):
        return []
    text = limit.read_text(encoding="utf-8").strip()
    if text == "max":
        return []
    return [max(0, int(text) - int(used.read_text(encoding="utf-8")))]


def measure_speed(device: torch.device) -> Speed:
    """Measure a GPU's bf16 throughput and its copy bandwidth from pinned memory, in about 50 ms."""
    size, megabytes = 4096, 64
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    pinned = torch.empty(megabytes << 20, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty_like(pinned, device=device)

    def seconds(work: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for timed in (False, True):
            if timed:
                begin.record()
            for _ in range(3):
                work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / 3

    flops = 2 * size**3 / seconds(lambda: a @ a)
    bandwidth = (megabytes << 20) / seconds(lambda: on_device.copy_(pinned, non_blocking=True))
    return Speed(flops=flops, host_bandwidth=bandwidth)


class HostPeak:
    """Measures the growth of this process's resident memory, if the operating system reports it."""

    def __init__(self) -> None:
        """Make the allocator return free memory to the operating system, then start measuring."""
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
            self._before = _resident("VmRSS")
        except OSError:  # the file is missing or not writable
            self._before = None

    def growth(self) -> int | None:
        """Maximum growth of resident memory so far, in bytes; None if not available."""
        peak = _resident("VmHWM")
        return None if self._before is None or peak is None else max(0, peak - self._before)


def _resident(field: str) -> int | None:
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None
