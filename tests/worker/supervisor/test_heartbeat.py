"""The file that shows a container's health: renewed by each answered hello, never in the way."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tunesmith_schema import WorkerHello, WorkerWelcome
from tunesmith_worker.supervisor.app import make_app
from tunesmith_worker.supervisor.heartbeat import HeartbeatThread
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.server_api import ServerApi, ServerUnreachable
from tunesmith_worker.supervisor.settings import WorkerSettings


def heartbeat(folder: Path, hello_file: Path) -> HeartbeatThread:
    settings = WorkerSettings(data_dir=folder, hello_file=hello_file)
    return HeartbeatThread(make_app("memory://"), settings, WorkerIdentity.new("light"))


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
