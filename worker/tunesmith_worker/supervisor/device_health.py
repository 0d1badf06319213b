"""Check before each claim that this host is ready for a trainer. Never uses CUDA.

Earlier runs must leave no process and no shared memory, and the GPU must have as much free memory
as before the worker's first job. If the check fails, the worker claims no job, reports the reason
in its hello message and checks again later.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Literal

from tunesmith_worker.rundir.device_use import device_use_folder, gpu_name, read_uses
from tunesmith_worker.rundir.process import trainer_gpu

from .cleanup import end_processes, free_shared_memory, shared_memory

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""Maximum seconds to wait until the driver has freed a killed process's memory."""
TOLERANCE_BYTES = 512 * 1024**2
"""Bytes of missing GPU memory that are tolerated.

The CUDA context of a leftover process takes more memory than the tolerance. The driver itself takes
less.
"""
_REASON_BYTES = 500

FreeMemory = Callable[[], int | None]
"""Function that returns the free bytes of the worker's GPU; None if unknown."""


class DeviceHealth:
    """Health of this host. Must be created before the pool forks, so that the worker's processes
    share the state."""

    def __init__(self, data_dir: Path, free_memory: FreeMemory, gpu: str | None = None) -> None:
        """`gpu`: UUID of the trainers' GPU."""
        self._data_dir, self._free_memory, self._gpu = data_dir, free_memory, gpu
        self._free_at_start = free_memory()
        self._shared_before = shared_memory()
        self._used = RawValue("b", 0)
        self._reason = RawArray("c", _REASON_BYTES)
        self._last: tuple[Path, int | None] | None = None

    @property
    def reason(self) -> str | None:
        """Reason why the last check failed; None if it passed."""
        return self._reason.value.decode(errors="ignore") or None

    def job_claimed(self) -> None:
        """Record that a job runs, which may leave processes or memory behind."""
        self._used.value = 1

    def watch_run(self, run_dir: Path, session: int | None) -> None:
        """Set the run whose remaining processes the next check looks for. `session`: process id of
        the run's trainer."""
        self._last = (run_dir, session)

    def is_ready(self, patience: float | None = None) -> bool:
        """Clean up after earlier runs, and return True if the host is ready for a trainer.

        Waits up to `patience` seconds (default: PATIENCE_SECONDS)."""
        deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)
        while (why := self._problem()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if why and why != self.reason:
            log.error("not ready to claim jobs: %s", why)
        elif self.reason and not why:
            log.warning("ready to claim jobs again; solved: %s", self.reason)
        if why is None:
            self._used.value = 0
        self._reason.value = (why or "").encode()[: _REASON_BYTES - 1]
        return why is None

    def _problem(self) -> str | None:
        try:
            tempfile.TemporaryFile(dir=self._data_dir).close()
        except OSError as error:
            return f"cannot write to {self._data_dir}: {error.strerror}"
        if not self._used.value:
            return None
        if self._last is not None:
            run_dir, session = self._last
            if alive := end_processes(run_dir, session, 0.0):
                return (
                    f"cannot kill processes of {run_dir.parent.name}: {', '.join(map(str, alive))}"
                )
            free_shared_memory(self._shared_before)
        return self._missing_memory()

    def _held_by_chat(self) -> int:
        """Return the bytes of models that chat unloads as soon as a trainer asks for memory."""
        if self._gpu is None:
            return 0
        uses = read_uses(device_use_folder()).values()
        return sum(use.bytes or 0 for use in uses if use.kind == "chat" and use.gpu == self._gpu)

    def _missing_memory(self) -> str | None:
        if self._free_at_start is None:
            return None
        free = self._free_memory()
        if free is None:
            return "nvidia-smi no longer reports free GPU memory: check the driver"
        missing = self._free_at_start - free - self._held_by_chat()
        if missing <= TOLERANCE_BYTES:
            return None
        return (
            f"the GPU has {free / 1e9:.1f} GB free, {missing / 1e9:.1f} GB less than before the "
            "first job: nvidia-smi shows the processes that use it"
        )


def free_gpu_memory() -> int | None:
    """Return the free bytes of the trainers' GPU from nvidia-smi; None if unknown."""
    return _gpu_memory("free")


def device_memory() -> int | None:
    """Return the total memory in bytes of the trainers' GPU, or of a host without GPU; None if
    unknown."""
    if shutil.which("nvidia-smi"):
        return _gpu_memory("total")
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not a POSIX system
        return None


def _gpu_memory(kind: Literal["free", "total"]) -> int | None:
    try:
        return int(_query_gpu(f"memory.{kind}")) * 1024**2
    except ValueError:  # no value for MIG slices
        return None


def worker_gpu() -> str | None:
    """Return the UUID of the trainers' GPU; None without a GPU."""
    return gpu_name(_query_gpu("uuid")) or None


def _query_gpu(field: str) -> str:
    """Return a value of the trainers' GPU from nvidia-smi; empty if unknown."""
    tool, gpu = shutil.which("nvidia-smi"), trainer_gpu()
    if tool is None or not gpu:
        return ""
    command = [tool, f"--id={gpu}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        query = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return ""
    words = query.stdout.split()
    return words[0] if words and query.returncode == 0 else ""


def describe_device() -> str:
    """Return the name of the GPU, or the CPU's architecture. This function does not import
    torch."""
    if shutil.which("nvidia-smi"):
        query = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        names = [line.strip() for line in query.stdout.splitlines() if line.strip()]
        if query.returncode == 0 and names:
            return f"{len(names)} x {names[0]}" if len(names) > 1 else names[0]
    return f"cpu ({platform.machine()})"
