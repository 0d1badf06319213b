"""The heartbeat thread: the file that shows a container's health, and waking the pool."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from tunesmith_schema import WorkerHello, WorkerWelcome
from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK
from tunesmith_worker.supervisor.heartbeat import HeartbeatThread
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.server_api import ServerApi, ServerUnreachable
from tunesmith_worker.supervisor.settings import WorkerSettings


def heartbeat(folder: Path, hello_file: Path) -> HeartbeatThread:
    settings = WorkerSettings(data_dir=folder, hello_file=hello_file)
    return HeartbeatThread(settings, WorkerIdentity.new("light"))


def test_the_file_is_there_once_the_server_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "hello"
    asked: list[bool] = []

    def hello(self: ServerApi, body: WorkerHello) -> WorkerWelcome:
        asked.append(shown.exists())
        if len(asked) == 1:
            raise ServerUnreachable("starting")
        return WorkerWelcome(jobs_waiting=False)

    monkeypatch.setattr(ServerApi, "hello", hello)
    monkeypatch.setattr(ServerApi, "goodbye", lambda self, worker_id: None)
    speaking = heartbeat(tmp_path, shown)
    speaking.start()
    deadline = time.monotonic() + 10
    while not shown.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    speaking.stop()
    assert asked == [False, False]
    assert shown.exists()


def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat(tmp_path, tmp_path / "absent" / "hello")._touch_hello_file()
    assert "TUNESMITH_HELLO_FILE" in caplog.text


class RecordingPool:
    """Pool that records its calls. The test decides when they have ended."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.busy = False

    def on_apply(
        self, target: Callable[[str, str], None], args: tuple[str, str], *, waitforslot: bool
    ) -> Any:  # Any: Celery's result
        assert not waitforslot, "the heartbeat must not wait for a busy pool"
        self.calls.append(args)
        return self

    def ready(self) -> bool:
        return not self.busy


@pytest.mark.parametrize(
    ("queue", "welcome", "calls"),
    [
        ("train", WorkerWelcome(jobs_waiting=True), [(TRAIN_TASK, "")]),
        ("train", WorkerWelcome(jobs_waiting=False), []),
        (
            "light",
            WorkerWelcome(jobs_waiting=False, files_waiting=["file-1", "file-2"]),
            [(VALIDATE_FILE_TASK, "file-1"), (VALIDATE_FILE_TASK, "file-2")],
        ),
    ],
)
def test_waiting_work_wakes_an_idle_pool_once(
    tmp_path: Path,
    queue: Literal["train", "light"],
    welcome: WorkerWelcome,
    calls: list[tuple[str, str]],
) -> None:
    pool = RecordingPool()
    thread = HeartbeatThread(WorkerSettings(data_dir=tmp_path), WorkerIdentity.new(queue))
    thread._pool = pool
    thread._wake(welcome)
    pool.busy = True
    thread._wake(welcome)
    assert pool.calls == calls
    pool.busy = False
    thread._wake(welcome)
    assert pool.calls == calls * 2
