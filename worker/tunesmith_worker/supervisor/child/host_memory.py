"""Read this host's memory data from the kernel: out-of-memory kills, limits and pressure.

The sources are /proc and the control group (version 2 or 1) that this process shares with the
trainer. Values that the host does not provide are None.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
_NO_LIMIT = 1 << 60
"""Limits of at least this number mean "no limit": cgroup version 1 uses a number near 2^63."""


@dataclass(frozen=True, kw_only=True)
class Kills:
    """Number of out-of-memory kills so far."""

    in_group: int | None
    """Number of out-of-memory kills in this control group."""
    on_host: int | None

    def since(self, before: Kills) -> int | None:
        """Return the number of out-of-memory kills since `before`; None if this host does not count
        them.

        The control group's count is used if available, otherwise the host's count."""
        for now, earlier in ((self.in_group, before.in_group), (self.on_host, before.on_host)):
            if now is not None and earlier is not None:
                return now - earlier
        return None


class HostMemory:
    def __init__(self, root: Path = Path("/")) -> None:
        """`root`: folder that contains `proc` and `sys`."""
        self._proc, self._groups = root / "proc", root / "sys/fs/cgroup"

    def kills(self) -> Kills:
        in_group = _field(self._group_file("memory.events", "memory.oom_control"), "oom_kill")
        return Kills(in_group=in_group, on_host=_field(_text(self._proc / "vmstat"), "oom_kill"))

    def peak(self, pid: int) -> int | None:
        """Return the peak memory of a process so far, in bytes."""
        kib = _field(_text(self._proc / str(pid) / "status"), "VmHWM:")
        return None if kib is None else kib * 1024

    def limit(self) -> tuple[int, str] | None:
        """Return the memory limit in bytes, and the source of the limit."""
        text = self._group_file("memory.max", "memory.limit_in_bytes").strip()
        total = _field(_text(self._proc / "meminfo"), "MemTotal:")
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text), "control group (container)"
        return None if total is None else (total * 1024, "memory of the host")

    def pressure(self) -> float | None:
        """Return the percentage of the last 10 s in which a process waited for memory (PSI)."""
        match = re.search(r"some avg10=([\d.]+)", _text(self._proc / "pressure/memory"))
        return float(match[1]) if match else None

    def _group_file(self, name: str, old_name: str) -> str:
        for line in _text(self._proc / "self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                folder, file = self._groups, name
            elif "memory" in controllers.split(","):
                folder, file = self._groups / "memory", old_name
            else:
                continue
            # Inside a container, the path of its control group is the root, although the host uses
            # another path.
            for place in (folder / path.lstrip("/"), folder):
                if text := _text(place / file):
                    return text
        return ""


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size >> 20} MiB"


def _field(text: str, name: str) -> int | None:
    match = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):  # not every kernel or container has the file
        return path.read_text()
    return ""
