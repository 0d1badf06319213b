"""Set up the trainer's process: environment variables, memory and imports. The process ends when
the supervisor ends.

This module uses only the standard library, because it runs before slow imports.
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
"""Option numbers for mallopt (glibc's malloc.h)."""
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SpawnSettings:
    """Environment variables that a supervisor sets for its child process. A run without a
    supervisor has none of these variables."""

    supervisor_pid: int | None = None
    """Process id of the supervisor. The trainer ends when the supervisor ends."""
    spawned_at: float | None = None
    """Time when the child was spawned, in Unix seconds."""
    token_cache: str | None = None
    """Shared cache folder of tokenised files; None: no cache."""
    device_use: str | None = None
    """Folder in which the processes of this host record the devices that they use; None: the
    default."""

    rollout_url: str | None = None
    """URL of a vLLM server for rollouts; None: no server."""
    rollout_token: str | None = None
    """API key of the vLLM server; None: the server needs no key."""

    @classmethod
    def from_environment(cls) -> Self:
        pid = os.environ.get("TUNESMITH_SUPERVISOR_PID")
        spawned_at = os.environ.get("TUNESMITH_SPAWNED_AT")
        return cls(
            supervisor_pid=int(pid) if pid else None,
            spawned_at=float(spawned_at) if spawned_at else None,
            token_cache=os.environ.get("TUNESMITH_TOKEN_CACHE"),
            device_use=os.environ.get("TUNESMITH_DEVICE_USE"),
            rollout_url=os.environ.get("TUNESMITH_ROLLOUT_URL") or None,
            rollout_token=os.environ.get("TUNESMITH_ROLLOUT_TOKEN") or None,
        )

    def as_environment(self) -> dict[str, str]:
        return {
            f"TUNESMITH_{name.upper()}": str(value)
            for name, value in asdict(self).items()
            if value is not None
        }


@dataclass(frozen=True, kw_only=True)
class StartDelay:
    """Seconds from the spawn to the trainer's `main`."""

    spawn: float
    imports: float = 0.0
    """Seconds that a warm trainer still needed for its imports after it got the run. For a fresh
    trainer 0, because its imports are measured later."""


def spawn_delay() -> StartDelay | None:
    """Return the seconds since the supervisor started this process; None for a run started by
    hand."""
    spawned = SpawnSettings.from_environment().spawned_at
    return None if spawned is None else StartDelay(spawn=max(0.0, time.time() - spawned))


def die_with_supervisor() -> None:
    """Make Linux kill this process when the supervisor ends. If the supervisor has already ended,
    exit."""
    expected = SpawnSettings.from_environment().supervisor_pid
    if expected is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the supervisor ended before the prctl call above, the parent is another process.
    if os.getppid() != expected:
        os._exit(1)


def treat_ctrl_c_as_sigterm() -> None:
    """Make the first Ctrl-C save and exit (like SIGTERM), and the second Ctrl-C end the process."""

    def save_and_exit(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if callable(signal.getsignal(signal.SIGTERM)):
            os.write(2, b"saving a resume point; press Ctrl-C again to end at once\n")
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGINT, save_and_exit)


def set_environment(values: Mapping[str, str]) -> None:
    """Set environment variables of this process, because a library reads its settings from them."""
    os.environ.update(values)


def default_environment(env: MutableMapping[str, str]) -> None:
    """Set defaults for CPU threads, make only one GPU visible, and send no usage statistics.

    The operator can change the thread settings, and can allow usage statistics. OpenMP threads must
    sleep while they wait. On two shared cores, two threads that wait in a busy loop are up to ten
    times slower than one thread.
    """
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    env.setdefault("TOKENIZERS_PARALLELISM", "true")  # the trainer never forks
    env.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL reports the model type and the GPU
    env.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler prints a line on stderr
    # With several visible GPUs, the Trainer would change the meaning of the batch size.
    env["CUDA_VISIBLE_DEVICES"] = trainer_gpu(env)


def trainer_gpu(env: Mapping[str, str] | None = None) -> str:
    """Return the CUDA id of the GPU that trainers use: the first entry of CUDA_VISIBLE_DEVICES, or
    0 if the variable is not set. `env` defaults to os.environ."""
    env = os.environ if env is None else env
    return env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` without TUNESMITH_* settings and cloud keys, for child processes."""
    secrets = ("TUNESMITH_", "AWS_", "AZURE_", "GOOGLE_")
    return {key: value for key, value in env.items() if not key.startswith(secrets)}


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for later tensors instead of returning it to the kernel.

    On a CPU, page faults on new memory take 7 to 18 % of a trainer's time (docs/contributing/log).
    Without glibc, this function has no effect.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    for option, value in (
        (_M_TOP_PAD, 1 << 28),
        (_M_TRIM_THRESHOLD, _INT_MAX),
        (_M_MMAP, _INT_MAX),
    ):
        libc.mallopt(option, value)


def return_freed_memory() -> None:
    """Make glibc return its freed memory to the kernel, in spite of `keep_freed_memory`."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


@contextmanager
def quick_imports(*, quantized: bool = False) -> Iterator[None]:
    """Within this block, import torch, transformers, trl and peft faster: 2.9 s instead of 4.5 s.

    The garbage collector is off during imports, because imports create no garbage. After the
    imports, the garbage collector ignores the half million imported objects (`gc.freeze`), which
    saves 0.3 s in each full garbage collection.

    Unless `quantized`, peft does not import bitsandbytes, which would import torch's compiler.
    `None` in sys.modules makes the import fail as if bitsandbytes were not installed.
    """
    freezes = "torch" not in sys.modules
    if not quantized:
        sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]  # typeshed forbids None
    gc.disable()
    try:
        yield
    finally:
        if freezes:
            gc.freeze()
        gc.enable()


def exit_fast(status: int) -> NoReturn:
    """Exit like `sys.exit`, but without the slow cleanup of the interpreter and torch."""
    atexit._run_exitfuncs()  # removes temporary folders and locks, flushes logs: takes 10 ms
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
