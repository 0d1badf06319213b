"""A full disk while training: the job fails with disk_full, and gives back what it had taken."""

from __future__ import annotations

import errno
import io
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_events, read_result
from tunesmith_schema import (
    Claim,
    ClaimedFile,
    Control,
    ErrorCategory,
    ErrorCode,
    Hyperparameters,
    JobFailure,
    Outcome,
    Recipe,
    Report,
    ReportReply,
)
from tunesmith_worker.rundir.errors import EXIT_DISK_FULL, failure_of
from tunesmith_worker.rundir.paths import write_json
from tunesmith_worker.supervisor import job_session
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.server_api import ServerApi
from tunesmith_worker.supervisor.settings import WorkerSettings
from tunesmith_worker.supervisor.supervise import supervise
from tunesmith_worker.trainer import run as run_module
from tunesmith_worker.trainer.run import main

from .test_supervisor_parts import ended, stand_in

FAST = {"max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 2, "lora": {"r": 64}}
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Every write beyond `size` bytes of a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def assert_disk_full(failure: JobFailure | None) -> None:
    assert failure is not None
    assert (failure.code, failure.category) == (
        ErrorCode.DISK_FULL, ErrorCategory.INFRASTRUCTURE,
    )  # fmt: skip
    assert failure.hint is not None
    assert "Free space in the worker's data directory" in failure.hint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_space_quota_and_limit_are_all_a_full_disk(number: int) -> None:
    assert_disk_full(failure_of(OSError(number, "no")))
    assert_disk_full(failure_of(RuntimeError(f"I/O error: no (os error {number})")))


def test_a_checkpoint_that_finds_no_space_fails_the_run_and_leaves_no_half_of_it(
    make_run: MakeRun,
) -> None:
    run = make_run(QUESTIONS, recipe=FAST)
    with files_up_to(20_000):
        assert main(run) == 1
    result = read_result(run)
    assert result.outcome == "failed"
    assert_disk_full(result.error)
    assert list((run / "checkpoints").iterdir()) == []
    assert [event.source_seq for event in read_events(run)] == list(
        range(1, len(read_events(run)) + 1)
    )


def test_a_trainer_without_space_for_its_result_says_so_by_its_status(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_run(QUESTIONS, recipe=FAST)

    def full(*args: object) -> None:
        raise NO_SPACE

    monkeypatch.setattr(run_module, "train", full)
    monkeypatch.setattr(run_module, "write_json", full)
    assert main(run) == EXIT_DISK_FULL
    said = capfd.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said[-2:]] == ["error", "hint"], "no bare traceback"
    assert "disk is full" in said[-2]
    assert not (run / "result.json").exists()


class FullLog(io.StringIO):
    def write(self, text: str) -> int:
        raise NO_SPACE


def test_neither_does_one_whose_log_lies_there_leave_by_a_traceback(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(QUESTIONS, recipe=FAST)

    def full(*args: object) -> None:
        raise NO_SPACE

    monkeypatch.setattr(run_module, "train", full)
    monkeypatch.setattr(sys, "stderr", FullLog())
    assert main(run) == 1
    assert_disk_full(read_result(run).error)


def test_a_run_that_succeeds_but_cannot_say_so_tells_of_the_disk(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*args: object) -> None:
        raise NO_SPACE

    monkeypatch.setattr(run_module, "write_json", full)
    assert main(make_run(QUESTIONS, recipe=FAST)) == EXIT_DISK_FULL
    assert "error: The worker's disk is full" in capfd.readouterr().err


def test_that_status_is_understood(tmp_path: Path) -> None:
    process = ended(stand_in(tmp_path, f"raise SystemExit({EXIT_DISK_FULL})"))
    assert_disk_full(process.diagnose_exit())


def interpreter(tmp_path: Path, code: str) -> str:
    """A trainer's interpreter that runs `code` instead."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{code}\n")
    python.chmod(0o755)
    return str(python)


class FakeApi(ServerApi):
    """A server with one job, and a network that fills the disk when told to."""

    identity = WorkerIdentity.new("train")

    def __init__(self, *, fetch_fails: bool = False) -> None:
        self.reports: list[Report] = []
        self._fetch_fails = fetch_fails

    @property
    def outcome(self) -> Outcome | None:
        return self.reports[-1].outcome if self.reports else None

    def claim(self, worker_id: str) -> Claim | None:
        file = ClaimedFile(file_id="file-1", filename="a.jsonl", bytes=1, sha256="0" * 64)
        return Claim(
            job_id="ftjob-1", attempt=1, fence=1, lease_seconds=60, queued_seconds=0,
            model="acme/tiny", training_file=file, recipe=Recipe(),
            hyperparameters=Hyperparameters(), seed=1,
        )  # fmt: skip

    def report(self, job_id: str, report: Report, timeout: float) -> ReportReply:
        self.reports.append(report)
        seq = max((event.source_seq for event in report.events), default=0)
        return ReportReply(control=Control.CONTINUE, accepted_seq=seq, lease_seconds=60)

    def fetch_file(self, file_id: str, sha256: str, target: Path) -> None:
        target.write_text("{}\n")
        if self._fetch_fails:
            raise NO_SPACE


def settings(tmp_path: Path, trainer: str) -> WorkerSettings:
    return WorkerSettings(
        data_dir=tmp_path / "data",
        trainer_python=interpreter(tmp_path, trainer),
        warm_trainer=False,
    )


def supervised(chosen: WorkerSettings, api: ServerApi) -> bool:
    return supervise(chosen, api, "w", never, Launcher(chosen))


def never() -> bool:
    return False


def test_a_download_that_finds_no_space_fails_the_job_and_is_removed(tmp_path: Path) -> None:
    api = FakeApi(fetch_fails=True)
    assert supervised(settings(tmp_path, ""), api)
    assert api.outcome is not None
    assert_disk_full(api.outcome.error)
    assert not list((tmp_path / "data").rglob("data/train*"))


def test_a_run_directory_that_cannot_be_made_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *args: Any, **kwargs: Any) -> None:  # Any: pathlib's own
        raise NO_SPACE

    api, chosen = FakeApi(), settings(tmp_path, "")
    monkeypatch.setattr(Path, "mkdir", full)
    assert supervised(chosen, api)
    assert api.outcome is not None
    assert_disk_full(api.outcome.error)


def test_a_disk_full_while_stopping_the_trainer_does_not_hide_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_for_control(path: Path, value: BaseModel) -> None:
        if path.name == "control.json":
            raise NO_SPACE
        write_json(path, value)

    def broken(self: object) -> Outcome:
        raise NO_SPACE

    monkeypatch.setattr(job_session, "write_json", full_for_control)
    monkeypatch.setattr(job_session.JobSession, "watch", broken)
    api = FakeApi()
    assert supervised(settings(tmp_path, "import time; time.sleep(60)"), api)
    assert api.outcome is not None
    assert_disk_full(api.outcome.error)
