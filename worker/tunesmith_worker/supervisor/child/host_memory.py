"""What the kernel counts of memory on this host: whether it killed for want of it, and how full.

Reads /proc and the control group of this process, which a trainer shares (version 2 or 1). What a
host does not have is None.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
_NO_LIMIT = 1 << 60
"""Version 1 says "no limit" by a number near 2^63."""


@dataclass(frozen=True, kw_only=True)
class Kills:
    """Processes that the kernel has killed for memory so far."""

    of_group: int | None
    """In this control group, whichever limit was met."""
    of_host: int | None

    def since(self, before: Kills) -> int | None:
        """How many more than `before`; of the group, if it counts; None: nobody does."""
        for now, then in ((self.of_group, before.of_group), (self.of_host, before.of_host)):
            if now is not None and then is not None:
                return now - then
        return None


class HostMemory:
    def __init__(self, root: Path = Path("/")) -> None:
        """`root`: where `proc` and `sys` are."""
        self._proc, self._groups = root / "proc", root / "sys/fs/cgroup"

    def kills(self) -> Kills:
        of_group = _field(self._of_group("memory.events", "memory.oom_control"), "oom_kill")
        return Kills(of_group=of_group, of_host=_field(_text(self._proc / "vmstat"), "oom_kill"))

    def peak(self, pid: int) -> int | None:
        """The most that a process has held at once, bytes."""
        kib = _field(_text(self._proc / str(pid) / "status"), "VmHWM:")
        return None if kib is None else kib * 1024

    def limit(self) -> tuple[int, str] | None:
        """Bytes that may be held here, and whose limit that is."""
        text = self._of_group("memory.max", "memory.limit_in_bytes").strip()
        total = _field(_text(self._proc / "meminfo"), "MemTotal:")
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text), "the control group's (container's) limit"
        return None if total is None else (total * 1024, "all that the host has")

    def pressure(self) -> float | None:
        """Share of the last 10 s in which some process waited for memory, percent (PSI)."""
        found = re.search(r"some avg10=([\d.]+)", _text(self._proc / "pressure/memory"))
        return float(found[1]) if found else None

    def _of_group(self, name: str, old_name: str) -> str:
        """A file of our control group: `name` in version 2, `old_name` in version 1."""
        for line in _text(self._proc / "self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                folder, file = self._groups, name
            elif "memory" in controllers.split(","):
                folder, file = self._groups / "memory", old_name
            else:
                continue
            # A container sees its own group as the root, whatever its path outside.
            for place in (folder / path.lstrip("/"), folder):
                if text := _text(place / file):
                    return text
        return ""


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size >> 20} MiB"


def _field(text: str, name: str) -> int | None:
    """The number behind `name` at a line's start."""
    found = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):  # this kernel or container does not have it
        return path.read_text()
    return ""
