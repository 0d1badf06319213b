"""A host that is not fit for a trainer claims nothing, says why, and is looked at again."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.service import alive, until
from tunesmith_worker.rundir.device_use import Announcement, DeviceUse, gpu_name
from tunesmith_worker.supervisor import cleanup, device_health
from tunesmith_worker.supervisor.device_health import DeviceHealth, free_gpu_memory, worker_gpu
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.supervise import supervise

from .test_disk_full import FakeApi, never, settings

GB = 10**9


class FakeCard:
    """What NVML says of the free memory."""

    free: int | None = 80 * GB

    def __call__(self) -> int | None:
        return self.free


@pytest.fixture
def card() -> FakeCard:
    return FakeCard()


@pytest.fixture
def health(tmp_path: Path, card: FakeCard) -> DeviceHealth:
    health = DeviceHealth(tmp_path, card)
    health.job_claimed()
    return health


def test_memory_that_is_not_given_back_keeps_the_worker_from_claiming(
    tmp_path: Path, card: FakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_health, "PATIENCE_SECONDS", 0.0)
    api, chosen = FakeApi(), settings(tmp_path, "raise SystemExit(3)")
    chosen.data_dir.mkdir()
    health = DeviceHealth(chosen.data_dir, card)
    assert supervise(chosen, api, "w", never, Launcher(chosen), never, health)
    api.reports.clear()
    card.free = 77 * GB
    assert not supervise(chosen, api, "w", never, Launcher(chosen), never, health)
    assert api.reports == []
    assert health.reason
    assert "77.0 GB free, 3.0 GB less than before the first job" in health.reason
    card.free = 80 * GB
    assert health.is_ready()
    assert health.reason is None


def test_a_driver_is_given_time_to_take_memory_back(health: DeviceHealth, card: FakeCard) -> None:
    answers = iter([70 * GB, 79 * GB, 80 * GB])
    health._free_memory = lambda: next(answers)
    assert health.is_ready(patience=5.0)


@pytest.mark.parametrize(("less", "clean"), [(500 * 1024**2, True), (600 * 1024**2, False)])
def test_a_little_less_memory_is_no_reason(
    health: DeviceHealth, card: FakeCard, less: int, clean: bool
) -> None:
    card.free = 80 * GB - less
    assert health.is_ready(patience=0.0) == clean


def test_a_card_that_no_longer_answers_is_a_reason(health: DeviceHealth, card: FakeCard) -> None:
    card.free = None
    assert not health.is_ready(patience=0.0)
    assert "check the driver" in (health.reason or "")


def test_the_driver_is_not_asked_while_nothing_has_run(tmp_path: Path, card: FakeCard) -> None:
    """It takes a second where it keeps nothing in memory."""
    health = DeviceHealth(tmp_path, card)
    card.free = 0
    assert health.is_ready(patience=0.0)


def test_a_host_without_a_card_is_fit(tmp_path: Path) -> None:
    health = DeviceHealth(tmp_path, lambda: None)
    health.job_claimed()
    assert health.is_ready(patience=0.0)


def test_a_directory_that_cannot_be_written_is_a_reason(
    health: DeviceHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**options: Any) -> None:  # Any: tempfile's own
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert not health.is_ready(patience=0.0)
    assert "Read-only file system" in (health.reason or "")


def test_memory_of_chat_that_yields_to_trainers_is_not_missing(
    tmp_path: Path, card: FakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESMITH_DEVICE_USE", str(tmp_path / "uses"))
    health = DeviceHealth(tmp_path, card, gpu="g1")
    health.job_claimed()
    card.free = 60 * GB
    with Announcement(DeviceUse(kind="chat", gpu="g2", bytes=20 * GB)):
        assert not health.is_ready(patience=0.0), "chat is on another GPU"
    with Announcement(DeviceUse(kind="chat", gpu="g1", bytes=20 * GB)):
        assert health.is_ready(patience=0.0)


def test_a_process_that_a_run_has_left_is_ended_before_the_next(
    health: DeviceHealth, tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs" / "ftjob-1" / "attempt-1"
    run_dir.mkdir(parents=True)
    left = subprocess.Popen(["sleep", "60"], cwd=run_dir, start_new_session=True)
    health.watch_run(run_dir, session=None)
    assert health.is_ready(patience=5.0)
    assert left.wait(timeout=5) == -9


def test_one_that_cannot_be_ended_is_named(
    health: DeviceHealth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_health, "end_processes", lambda *_: [4711])
    health.watch_run(tmp_path / "runs" / "ftjob-1" / "attempt-1", session=4711)
    assert not health.is_ready(patience=0.0)
    assert health.reason == "cannot kill processes of ftjob-1: 4711"


def test_a_run_that_crashes_takes_what_it_started_along(tmp_path: Path) -> None:
    """The trainer ends by itself, so that nobody kills its group; its child had moved away."""
    trainer = (
        "import os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'], cwd='/')\n"
        "pathlib.Path(sys.argv[-1], 'pid').write_text(str(child.pid))\n"
        "os.abort()"
    )
    chosen = settings(tmp_path, trainer)
    assert supervise(chosen, FakeApi(), "w", never, Launcher(chosen))
    (written,) = chosen.data_dir.rglob("pid")
    until(lambda: not alive(int(written.read_text())), 5)


def test_shared_memory_of_a_dead_process_is_freed_and_no_other(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    before = {f"torch_{ended.pid}_1_0"}
    kept = {*before, "torch_1_2_0", "somebodys", f"psm_{ended.pid}"}
    gone = {f"torch_{ended.pid}_9_0", f"__KMP_REGISTERED_LIB_{ended.pid}_0"}
    for name in kept | gone:
        (tmp_path / name).touch()
    assert set(cleanup.free_shared_memory(before, tmp_path)) == gone
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(("says", "bytes_"), [("81079", 81079 * 1024**2), ("[N/A]", None)])
def test_the_figure_is_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, bytes_: int | None
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\n[ "$1" = --id=3 ] && echo "{says}"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert free_gpu_memory() == bytes_


def test_a_worker_knows_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1 $2" = "--id=3 --query-gpu=uuid" ] && echo GPU-0AB1\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert worker_gpu() == gpu_name("0ab1") == "0ab1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert worker_gpu() is None


def test_a_trainers_temporary_files_go_with_it(tmp_path: Path) -> None:
    """Also where no warm trainer is kept; the folder is the worker's, and another takes it away."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    trainer = "import tempfile, os; print(tempfile.mkdtemp(), tempfile.mkstemp()); os.abort()"
    chosen = settings(tmp_path, trainer)
    assert supervise(chosen, FakeApi(), "w", never, Launcher(chosen, tmp))
    (log,) = chosen.data_dir.rglob("trainer.log")
    assert str(tmp) in log.read_text()
    assert list(tmp.iterdir()) == []
