"""What a process uses, as Linux tells it: memory at its highest, CPU seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_RESET_PEAK = "5"
"""What proc(5) wants in clear_refs to make VmHWM start again."""


@dataclass
class Use:
    """Filled in when the block of `watched` ends."""

    rss_before_mb: float = 0.0
    rss_growth_mb: float = 0.0
    """Highest resident set size during the block, less the one at its start; MB of 10^6 bytes."""
    cpu_seconds: float = 0.0


@contextmanager
def watched(pid: int) -> Iterator[Use]:
    """The kernel keeps the peak itself, so no short one is missed between samples."""
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
    use = Use(rss_before_mb=_status_mb(pid, "VmRSS"))
    cpu = cpu_seconds(pid)
    yield use
    use.rss_growth_mb = round(_status_mb(pid, "VmHWM") - use.rss_before_mb, 1)
    use.cpu_seconds = round(cpu_seconds(pid) - cpu, 2)
    use.rss_before_mb = round(use.rss_before_mb, 1)


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads, without children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no {name}: has it ended?")


def idle_share(seconds_before: tuple[float, float], seconds_after: tuple[float, float]) -> float:
    """Share of all cores' time that nobody used between two `machine_seconds`."""
    idle, total = (
        after - before for before, after in zip(seconds_before, seconds_after, strict=True)
    )
    return round(idle / total, 2) if total else 0.0


def machine_seconds() -> tuple[float, float]:
    """Idle and total seconds of all cores since boot."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (ticks[3] + ticks[4]) / _TICKS, sum(ticks) / _TICKS
