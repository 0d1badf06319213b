"""Whether this host is fit for a trainer, looked at before each claim.

After a trainer was killed nothing of its run may be left: no process, no shared memory, and the
GPU's free memory back at what it was before the worker's first job. Else the worker claims nothing,
says why in its hello, and looks again. Never touches CUDA.
"""

from __future__ import annotations

import logging
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path

from tunesmith_worker.rundir.process import trainer_gpu

from .cleanup import end_processes, free_shared_memory, shared_memory

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""A driver takes some seconds to take back what a killed process held."""
TOLERANCE_BYTES = 512 * 1024**2
"""Less than a CUDA context that was left; more than what a driver keeps to itself."""
_REASON_BYTES = 500

FreeMemory = Callable[[], int | None]
"""Free bytes of the worker's card; None: there is none, or it does not say."""


class DeviceHealth:
    """Made before the pool forks: its processes share what it knows and says."""

    def __init__(self, data_dir: Path, free_memory: FreeMemory) -> None:
        self._data_dir, self._free_memory = data_dir, free_memory
        self._at_first = free_memory()
        self._shared_before = shared_memory()
        self._used = RawValue("b", 0)
        self._said = RawArray("c", _REASON_BYTES)
        self._last: tuple[Path, int | None] | None = None

    @property
    def reason(self) -> str | None:
        """Why no job was claimed when it was last looked at; None: nothing was in the way."""
        return self._said.value.decode(errors="ignore") or None

    def taken(self) -> None:
        """A job was claimed: from here on something may be left, whoever dies."""
        self._used.value = 1

    def watches(self, run_dir: Path, session: int | None) -> None:
        """The run whose remains are looked for next; `session`: its trainer's process id."""
        self._last = (run_dir, session)

    def is_clean(self, patience: float | None = None) -> bool:
        """Clears away what can be, and waits for the rest: PATIENCE_SECONDS unless told."""
        deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)
        while (why := self._in_the_way()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if why and why != self.reason:
            log.error("no job is claimed: %s", why)
        elif self.reason and not why:
            log.warning("jobs are claimed again: %s no longer", self.reason)
        if why is None:
            self._used.value = 0
        self._said.value = (why or "").encode()[: _REASON_BYTES - 1]
        return why is None

    def _in_the_way(self) -> str | None:
        try:
            with tempfile.TemporaryFile(dir=self._data_dir):
                """It can be written to."""
        except OSError as error:
            return f"nothing can be written to {self._data_dir}: {error.strerror}"
        if not self._used.value:
            return None
        if self._last is not None:
            run_dir, session = self._last
            if left := end_processes(run_dir, session, 0.0):
                return f"processes of {run_dir.parent.name} live on: {', '.join(map(str, left))}"
            free_shared_memory(self._shared_before)
        return self._memory_taken()

    def _memory_taken(self) -> str | None:
        if self._at_first is None:
            return None
        free = self._free_memory()
        if free is None:
            return "the GPU no longer tells its free memory: is its driver still there?"
        missing = self._at_first - free
        if missing <= TOLERANCE_BYTES:
            return None
        return (
            f"the GPU has {free / 1e9:.1f} GB free, {missing / 1e9:.1f} GB less than before the "
            "first job: nvidia-smi shows who holds it"
        )


def free_gpu_memory() -> int | None:
    """Of the card that trainers take, by NVML as nvidia-smi reads it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [
        tool,
        f"--id={trainer_gpu()}",
        "--query-gpu=memory.free",
        "--format=csv,noheader,nounits",
    ]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return int(asked.stdout.split()[0]) * 1024**2 if asked.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError, IndexError):  # a MIG slice has no figure
        return None


def describe_device() -> str:
    """The GPU's name as its driver has it, else the CPU."""
    if shutil.which("nvidia-smi"):
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        names = [line.strip() for line in asked.stdout.splitlines() if line.strip()]
        if asked.returncode == 0 and names:
            return f"{len(names)} x {names[0]}" if len(names) > 1 else names[0]
    return f"cpu ({platform.machine()})"
