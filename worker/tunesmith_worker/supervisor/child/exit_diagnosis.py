"""Find out why a trainer left no result, from exit status, log and the kernel's counters."""

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

_TAIL_CHARS, _READ_BYTES = 1500, 1 << 16
_MODULES_LINE = "Extension modules: "
_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGSEGV: (
        "a segmentation fault",
        "a library accessed invalid memory: the log has the Python frames",
    ),
    signal.SIGABRT: (
        "an abort",
        "a library aborted: the log has its message and the Python frames",
    ),
    signal.SIGILL: (
        "an illegal instruction",
        "a library was built for another CPU: compare its requirements with `lscpu`",
    ),
    signal.SIGBUS: (
        "a bus error",
        "a memory-mapped file was truncated, or /dev/shm is full: raise the container's shm_size",
    ),
    signal.SIGFPE: ("an arithmetic fault", "the log has the Python frames"),
}


class MemoryMonitor:
    """Tracks a trainer's memory and the kernel's out-of-memory kills."""

    def __init__(self, host: HostMemory) -> None:
        self._host, self._before = host, host.kills()
        self._peak: int | None = None

    def update(self, pid: int) -> None:
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
    """Number of out-of-memory kills since the trainer started; None if the host does not count
    kills."""
    peak: int | None
    """Peak memory of the trainer in bytes."""
    limit: tuple[int, str] | None
    """Memory limit in bytes, and the source of the limit; None if no limit is known."""
    pressure: float | None
    """Memory pressure: percentage of the last 10 s in which a process waited for memory."""

    def figures(self) -> str:
        parts = [] if self.peak is None else [f"it used up to {gib(self.peak)}"]
        if self.limit is not None:
            parts.append(f"the limit is {gib(self.limit[0])} ({self.limit[1]})")
        if self.pressure is not None:
            parts.append(f"memory pressure was {self.pressure:.0f} % in the last 10 s")
        return "; ".join(parts) or "this host has no memory figures"


def diagnose_exit(status: int | None, log: Path, evidence: Evidence) -> JobFailure:
    """Return a JobFailure that explains why a trainer left no result. `status`: negative for a
    signal."""
    if status == -signal.SIGKILL:
        return _killed(evidence)
    if status == EXIT_DISK_FULL:
        return disk_full(f"cannot write to {log.parent}")
    if status == EXIT_READ_ONLY:
        return storage_read_only(f"cannot write to {log.parent}")
    tail = _log_end(log)
    how, hint = f"status {status}", f"see the whole log: {log} on the worker's host"
    if status is not None and status < 0:
        kind, hint = _SIGNALS.get(-status, ("a signal", hint))
        how = f"{kind} ({_signal_name(-status)})"
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
            message="the kernel's out-of-memory killer ended the trainer (SIGKILL): "
            f"{evidence.figures()}",
            hint="lower per_device_train_batch_size or max_seq_length, or give the worker more "
            "memory; `dmesg` on its host has the kernel's message",
        )
    cause = (
        "the kernel's out-of-memory killer did not act"
        if evidence.kernel_kills == 0
        else "the kernel may have killed it: this host does not count out-of-memory kills"
    )
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.TRAINER_KILLED,
        message=f"the trainer was killed (SIGKILL), but not by its worker; {cause}: "
        f"{evidence.figures()}",
        hint="find the process that sent SIGKILL on the worker's host: a person, systemd-oomd, "
        "earlyoom or the container runtime",
    )


def _log_end(log: Path) -> str:
    """Return the end of the log or, from faulthandler's report, the frames of the crashed
    thread."""
    text = log.read_bytes()[-_READ_BYTES:].decode(errors="replace")
    # Remove faulthandler's line with a hundred module names, which would hide the frames.
    text = "\n".join(
        line for line in text.splitlines() if not line.startswith(_MODULES_LINE)
    ).strip()
    _, fatal, report = text.rpartition("Fatal Python error: ")
    if not fatal:
        return text[-_TAIL_CHARS:]
    headline, _, threads = report.partition("\n")
    others, current, frames = threads.partition("Current thread")
    return f"{fatal}{headline}\n{current}{frames if current else others}"[:_TAIL_CHARS].strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"
