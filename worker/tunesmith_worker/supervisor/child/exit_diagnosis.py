"""Why a trainer ended that left no result, from its status, its log and the kernel's counters."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure
from tunesmith_worker.rundir.errors import (
    EXIT_DISK_FULL,
    EXIT_READ_ONLY,
    disk_full,
    storage_read_only,
)

from .host_memory import HostMemory, gib

_TAIL, _READ_BYTES = 1500, 1 << 16
_MODULES = "Extension modules: "
_SIGNALS = {
    signal.SIGSEGV: (
        "a segmentation fault",
        "a library read memory that is not its own: the log has the Python frames",
    ),
    signal.SIGABRT: (
        "an abort",
        "a library gave up on itself: the log has its last words and the Python frames",
    ),
    signal.SIGILL: (
        "an illegal instruction",
        "a library was built for another processor: compare `lscpu` with its requirements",
    ),
    signal.SIGBUS: (
        "a bus error",
        "a file that is mapped into memory was cut off, or /dev/shm is full: a container "
        "gets more by its shm_size",
    ),
    signal.SIGFPE: ("an arithmetic fault", "the log has the Python frames"),
}


class MemoryMonitor:
    """Notes what the kernel counts while a trainer lives."""

    def __init__(self, host: HostMemory) -> None:
        self._host, self._before = host, host.kills()
        self._peak: int | None = None

    def look(self, pid: int) -> None:
        self._peak = self._host.peak(pid) or self._peak

    def evidence(self) -> Evidence:
        return Evidence(
            kernel_kills=self._host.kills().since(self._before),
            peak=self._peak,
            limit=self._host.limit(),
            pressure=self._host.pressure(),
        )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    kernel_kills: int | None
    """Processes that the kernel killed for memory since the trainer began; None: nobody counts."""
    peak: int | None
    """The most memory that the trainer was seen to hold, bytes."""
    limit: tuple[int, str] | None
    """Bytes there are, and whose limit that is."""
    pressure: float | None
    """Percent of the last 10 s in which something waited for memory."""

    def figures(self) -> str:
        said = [] if self.peak is None else [f"it had held up to {gib(self.peak)}"]
        if self.limit is not None:
            said.append(f"{gib(self.limit[0])} is {self.limit[1]}")
        if self.pressure is not None:
            said.append(f"memory pressure was {self.pressure:.0f} % in the last 10 s")
        return "; ".join(said) or "this host shows no memory figures"


def why_it_ended(status: int | None, log: Path, evidence: Evidence) -> JobFailure:
    """`status` as subprocess has it: negative for a signal."""
    if status == -signal.SIGKILL:
        return _killed(evidence)
    if status == EXIT_DISK_FULL:
        return disk_full(f"nothing more could be written to {log.parent}")
    if status == EXIT_READ_ONLY:
        return storage_read_only(f"nothing could be written to {log.parent}")
    tail = _last_words(log)
    how, hint = f"status {status}", f"the whole log is {log} on the worker's host"
    if status is not None and status < 0:
        how = _name(-status)
        what, hint = _SIGNALS.get(signal.Signals(-status), ("a signal", hint))
        how = f"{what} ({how})"
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.TRAINER_CRASHED,
        message=f"the trainer ended with {how} and left no result; its log ends:\n{tail}",
        hint=hint,
    )


def _killed(evidence: Evidence) -> JobFailure:
    if evidence.kernel_kills:
        return JobFailure(
            category=ErrorCategory.OUT_OF_MEMORY,
            code=ErrorCode.KILLED_FOR_MEMORY,
            message="the kernel killed the trainer for lack of memory (SIGKILL by the "
            f"out-of-memory killer): {evidence.figures()}",
            hint="lower per_device_train_batch_size or max_seq_length, or give the worker more "
            "memory; `dmesg` on its host has the kernel's word",
        )
    told = "and not by the kernel for memory" if evidence.kernel_kills == 0 else "by whom is not "
    told += "" if evidence.kernel_kills == 0 else "known: this host does not count such kills"
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.TRAINER_KILLED,
        message=f"the trainer was killed (SIGKILL), not by its worker, {told}: "
        f"{evidence.figures()}",
        hint="look for who kills on the worker's host: a person, a memory guard such as "
        "systemd-oomd or earlyoom, a container's runtime",
    )


def _last_words(log: Path) -> str:
    """The log's end; of a crash that faulthandler has told, the thread that crashed."""
    text = log.read_bytes()[-_READ_BYTES:].decode(errors="replace")
    # A line of a hundred modules follows the frames, and would be all that is left to see.
    text = "\n".join(line for line in text.splitlines() if not line.startswith(_MODULES)).strip()
    _, fatal, told = text.rpartition("Fatal Python error: ")
    if not fatal:
        return text[-_TAIL:]
    what, _, threads = told.partition("\n")
    before, current, frames = threads.partition("Current thread")
    return f"{fatal}{what}\n{current}{frames if current else before}"[:_TAIL].strip()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
