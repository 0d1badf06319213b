"""The trainer as a process: it dies with its supervisor, and it keeps imports quick.

Standard library only, and run before anything heavy. Knows nothing of training.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import NoReturn, Self

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP = -1, -2, -3
"""glibc's malloc.h; thresholds in bytes, an int."""
_MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SpawnSettings:
    """What a supervisor tells its child through the environment; nothing when run by hand."""

    supervisor_pid: int | None = None
    """Whose death the child follows."""
    spawned_at: float | None = None
    """When the supervisor spawned it, unix seconds."""
    token_cache: str | None = None
    """Folder of tokenised files that runs share; None: none are kept."""

    @classmethod
    def from_environment(cls) -> Self:
        pid = os.environ.get("TUNESMITH_SUPERVISOR_PID")
        spawned_at = os.environ.get("TUNESMITH_SPAWNED_AT")
        return cls(
            supervisor_pid=int(pid) if pid else None,
            spawned_at=float(spawned_at) if spawned_at else None,
            token_cache=os.environ.get("TUNESMITH_TOKEN_CACHE"),
        )

    def as_environment(self) -> dict[str, str]:
        return {
            f"TUNESMITH_{name.upper()}": str(value)
            for name, value in asdict(self).items()
            if value is not None
        }


@dataclass(frozen=True, kw_only=True)
class StartDelay:
    """What a job waited for before its trainer's `main`, seconds."""

    spawn: float
    imports: float = 0.0
    """Rest of the imports of a warm trainer; a fresh one imports later."""


def spawn_delay() -> StartDelay | None:
    """How long it took from the supervisor's Popen to here; nothing when run by hand."""
    spawned = SpawnSettings.from_environment().spawned_at
    return None if spawned is None else StartDelay(spawn=max(0.0, time.time() - spawned))


def die_with_supervisor() -> None:
    """Ask Linux for SIGKILL when the supervisor dies, and leave if it is already gone."""
    expected = SpawnSettings.from_environment().supervisor_pid
    if expected is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the line above: then we already have another parent.
    if os.getppid() != expected:
        os._exit(1)


def treat_ctrl_c_as_sigterm() -> None:
    """Save and leave, as when a supervisor asks for it; the second one ends the process."""

    def leave_cleanly(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if callable(signal.getsignal(signal.SIGTERM)):
            os.write(2, b"saving what the run needs to go on; Ctrl-C again: end at once\n")
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGINT, leave_cleanly)


def default_environment(env: MutableMapping[str, str]) -> None:
    """Threads that suit a CPU, unless the operator has said otherwise, and one GPU.

    Two busy-waiting OpenMP threads on two shared cores are up to ten times slower than one.
    """
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    env.setdefault("TOKENIZERS_PARALLELISM", "true")  # the trainer never forks
    env.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler says on stderr that it starts
    # With several cards in sight the Trainer would spread each batch over all of them, and batch
    # size and number of epochs would no longer mean what the recipe says: one worker, one card.
    env["CUDA_VISIBLE_DEVICES"] = trainer_gpu(env)


def trainer_gpu(env: Mapping[str, str] | None = None) -> str:
    """The one card that trainers see, as CUDA names it; of this process's environment if None."""
    env = os.environ if env is None else env
    return env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """For a child that reads what users sent: no setting of ours, no key to anybody's cloud."""
    secrets = ("TUNESMITH_", "AWS_", "AZURE_", "GOOGLE_")
    return {key: value for key, value in env.items() if not key.startswith(secrets)}


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next tensor, instead of giving it back to the kernel.

    Page faults on fresh memory cost a trainer on a CPU 7-18 % of its time
    (docs/contributing/log). Without glibc this does nothing.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    for option, value in ((_M_TOP_PAD, 1 << 28), (_M_TRIM_THRESHOLD, _MOST), (_M_MMAP, _MOST)):
        libc.mallopt(option, value)


@contextmanager
def quick_imports(*, quantized: bool = False) -> Iterator[None]:
    """Import torch, transformers, trl and peft in 2.9 s instead of 4.5 s (measured).

    The garbage collector would walk the growing heap a hundred times and find nothing to free; each
    full collection later on, the Trainer's own at its start among them, would take 0.3 s for the
    half million objects that stay: they are frozen.
    And peft imports bitsandbytes, which imports torch's whole compiler, although only quantised
    base models (`quantized`) need it. `None` in sys.modules is Python's documented
    way to make an import fail; peft and transformers then see bitsandbytes as not installed.
    """
    first = "torch" not in sys.modules
    if not quantized:
        sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]  # typeshed forbids None
    gc.disable()
    try:
        yield
    finally:
        if first:
            gc.freeze()
        gc.enable()


def exit_fast(status: int) -> NoReturn:
    """Exit as `sys.exit` does, but for taking the interpreter and torch apart: the system frees
    their memory at once."""
    atexit._run_exitfuncs()  # temporary folders, locks, logs: 10 ms
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
