"""Trainers that leave no result, killed for real where that can be done, and what is said then."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS
from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure
from tunesmith_worker.rundir.errors import EXIT_READ_ONLY, failure_of
from tunesmith_worker.supervisor.child.host_memory import HostMemory
from tunesmith_worker.supervisor.child.spawn import TrainerProgram
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.trainer import run as run_module
from tunesmith_worker.trainer.run import main

from .test_supervisor_parts import ended, stand_in

GIB = 1024**3
SLEEPS = "import time; time.sleep(60)"


class FakeHost:
    """The kernel's files, which a test changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\n")
        self.write("proc/pressure/memory", "some avg10=41.50 avg60=1.00 avg300=0 total=1\n")
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 3\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def group_v2(self, kills: int, path: str = "jobs") -> None:
        self.write("proc/self/cgroup", "0::/jobs\n")
        self.write(f"sys/fs/cgroup/{path}/memory.events", f"oom 9\noom_kill {kills}\n")
        self.write(f"sys/fs/cgroup/{path}/memory.max", f"{8 * GIB}\n")

    def group_v1(self, kills: int) -> None:
        self.write("proc/self/cgroup", "5:cpu:/\n4:memory:/jobs\n0::/\n")
        self.write("sys/fs/cgroup/memory/jobs/memory.oom_control", f"under_oom 0\noom_kill {kills}")
        self.write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", f"{8 * GIB}\n")

    def group_in_container(self, kills: int) -> None:
        self.group_v2(kills, path=".")

    def host_only(self, kills: int) -> None:
        self.write("proc/vmstat", f"oom_kill {kills}\n")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path / "host")


def killed(tmp_path: Path, host: HostMemory | None, number: int = signal.SIGKILL) -> TrainerProcess:
    python = tmp_path / "python"
    python.write_text(f"#!/usr/bin/env python3\n{SLEEPS}\n")
    python.chmod(0o755)
    process = TrainerProcess(tmp_path, TrainerProgram(python=str(python)), host=host)
    process.poll()
    os.kill(process.pid, number)
    return process


@pytest.mark.parametrize("kind", ["group_v2", "group_v1", "group_in_container", "host_only"])
def test_a_kill_by_the_kernel_is_told_from_any_other(
    tmp_path: Path, host: FakeHost, kind: str
) -> None:
    count = getattr(host, kind)
    count(3)
    process = killed(tmp_path, HostMemory(host.root))
    count(4)
    failure = ended(process).diagnose_exit()
    assert (failure.code, failure.category) == (
        ErrorCode.KILLED_FOR_MEMORY, ErrorCategory.OUT_OF_MEMORY,
    )  # fmt: skip
    limit = "64.0 GiB (memory" if kind == "host_only" else "8.0 GiB (control group"
    assert limit in failure.message
    assert "memory pressure was 42 %" in failure.message
    assert failure.hint
    assert "per_device_train_batch_size" in failure.hint


def test_another_groups_kill_is_not_ours(tmp_path: Path, host: FakeHost) -> None:
    host.group_v2(0)
    process = killed(tmp_path, HostMemory(host.root))
    host.host_only(4)
    assert ended(process).diagnose_exit().code == ErrorCode.TRAINER_KILLED


def test_a_kill_by_somebody_is_named_on_this_host_too(tmp_path: Path) -> None:
    """With the kernel's own counters and the trainer's own memory."""
    process = killed(tmp_path, None)
    failure = ended(process).diagnose_exit()
    assert (failure.code, failure.category) == (
        ErrorCode.TRAINER_KILLED, ErrorCategory.INFRASTRUCTURE,
    )  # fmt: skip
    assert " MiB; " in failure.message
    assert "the limit is" in failure.message
    assert failure.hint


def test_a_host_that_counts_nothing_is_not_made_to_say_anything(tmp_path: Path) -> None:
    process = killed(tmp_path, HostMemory(tmp_path / "nothing"))
    message = ended(process).diagnose_exit().message
    assert "this host does not count out-of-memory kills" in message
    assert "no memory figures" in message


def test_what_a_process_held_at_most_is_seen() -> None:
    peak = HostMemory().peak(os.getpid())
    assert peak is not None
    assert 10 << 20 < peak < 1 << 40


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "a segmentation fault (SIGSEGV)"),
        (signal.SIGABRT, "an abort (SIGABRT)"),
        (signal.SIGILL, "an illegal instruction (SIGILL)"),
        (signal.SIGBUS, "a bus error (SIGBUS)"),
    ],
)
def test_a_crash_of_a_library_is_named_and_shows_its_frames(
    tmp_path: Path, number: signal.Signals, words: str
) -> None:
    code = "import os, threading, time, numpy.random, pyarrow.compute, pandas\n"
    code += "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    code += f"def in_the_library(): os.kill(os.getpid(), {int(number)})\nin_the_library()"
    failure = ended(stand_in(tmp_path, code)).diagnose_exit()
    assert failure.code == ErrorCode.TRAINER_CRASHED
    assert words in failure.message
    assert "in in_the_library" in failure.message, "faulthandler is on in every trainer"
    assert "Extension modules" not in failure.message
    assert failure.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("CUDA error: device-side assert triggered\nmore", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA error: uncorrectable ECC error encountered", "nvidia-smi -q -d ECC"),
        ("CUDA error: an illegal memory access was encountered", "xid"),
        ("NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error", "xid"),
        ("Triton Error [CUDA]: misaligned address", "xid"),
        ("cuBLAS error: CUBLAS_STATUS_EXECUTION_FAILED", "xid"),
    ],
)
def test_a_devices_error_is_the_devices(text: str, hint: str) -> None:
    failure = failure_of(RuntimeError(text))
    assert (failure.code, failure.category) == (
        ErrorCode.DEVICE_ERROR, ErrorCategory.INFRASTRUCTURE,
    )  # fmt: skip
    assert text.partition("\n")[0] in failure.message
    assert failure.hint
    assert hint in failure.hint


def test_a_device_without_memory_is_out_of_memory() -> None:
    error = RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`")
    assert failure_of(error).code == ErrorCode.OUT_OF_MEMORY


def assert_read_only(failure: JobFailure) -> None:
    assert (failure.code, failure.category) == (
        ErrorCode.STORAGE_READ_ONLY, ErrorCategory.INFRASTRUCTURE,
    )  # fmt: skip
    assert failure.hint


def test_a_read_only_file_system_is_named_and_somebody_elses_folder_too(tmp_path: Path) -> None:
    assert_read_only(failure_of(OSError(errno.EROFS, "Read-only file system", "/x")))
    assert_read_only(failure_of(RuntimeError("I/O error: Read-only (os error 30)")))
    mine = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "a"))
    assert_read_only(failure_of(mine, tmp_path))
    elsewhere = PermissionError(errno.EACCES, "Permission denied", "/models/weights")
    assert failure_of(elsewhere, tmp_path).code == ErrorCode.TRAINER_CRASHED


def test_a_trainer_that_may_not_write_its_result_says_so_by_its_status(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(QUESTIONS)

    def refused(*args: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(run_module, "train", refused)
    monkeypatch.setattr(run_module, "write_json", refused)
    assert main(run) == EXIT_READ_ONLY


def test_that_status_is_understood(tmp_path: Path) -> None:
    assert_read_only(ended(stand_in(tmp_path, f"exit({EXIT_READ_ONLY})")).diagnose_exit())
