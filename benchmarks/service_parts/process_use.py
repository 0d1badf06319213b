"""Peak memory and CPU-seconds of a process, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_RESET_PEAK = "5"
"""Value to write to /proc/PID/clear_refs to reset VmHWM; see proc(5)."""


@dataclass
class Use:
    """Memory and CPU use of a process during a `watched` block. The fields are set when the block
    ends."""

    rss_before_mb: float = 0.0
    rss_growth_mb: float = 0.0
    """Peak resident memory minus resident memory at the start, in MB (10^6 bytes)."""
    cpu_seconds: float = 0.0


@contextmanager
def watched(pid: int) -> Iterator[Use]:
    """Measure process `pid` during the block. The kernel records the peak memory, so short peaks
    count."""
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
    use = Use(rss_before_mb=_status_mb(pid, "VmRSS"))
    cpu = cpu_seconds(pid)
    yield use
    use.rss_growth_mb = round(_status_mb(pid, "VmHWM") - use.rss_before_mb, 1)
    use.cpu_seconds = round(cpu_seconds(pid) - cpu, 2)
    use.rss_before_mb = round(use.rss_before_mb, 1)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of `pid`, without its child processes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no {name}; the process may have ended")


def idle_share(seconds_before: tuple[float, float], seconds_after: tuple[float, float]) -> float:
    """Return the idle share of all cores between two results of `machine_seconds`."""
    idle, total = (
        after - before for before, after in zip(seconds_before, seconds_after, strict=True)
    )
    return round(idle / total, 2) if total else 0.0


def machine_seconds() -> tuple[float, float]:
    """Return the idle and total seconds of all cores since boot."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (ticks[3] + ticks[4]) / _TICKS, sum(ticks) / _TICKS
