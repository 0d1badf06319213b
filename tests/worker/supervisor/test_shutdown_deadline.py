"""A worker that is told to go: its trainer gets time for a resume point, bounded; or none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tunesmith_schema import Control, Report, ReportReply, StoredFile
from tunesmith_worker.supervisor import job_session, shutdown
from tunesmith_worker.supervisor.claim_lock import ClaimRecord
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.settings import WorkerSettings
from tunesmith_worker.supervisor.shutdown import ShutdownState, drain
from tunesmith_worker.supervisor.supervise import supervise

from .test_disk_full import FakeApi, settings

EVENT = {
    "source_seq": 50, "created_at": 1.0, "kind": "checkpoint", "message": "saved",
    "data": {"step": 3, "directory": "checkpoints/step-3"},
}  # fmt: skip
SAVES = f"""
import json, pathlib, signal, sys, time
root = pathlib.Path(sys.argv[-1])
def leave(*_):
    time.sleep(0.5)  # the rest of its step
    (root / "checkpoints/step-3").mkdir()
    (root / "checkpoints/step-3/a.safetensors").write_bytes(b"w")
    with (root / "events.jsonl").open("a") as file:
        file.write('{json.dumps(EVENT)}' + chr(10))
    (root / "result.json").write_text(json.dumps({{"outcome": "stopped", "step": 3}}))
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
(root / "ready").touch()
time.sleep(60)
"""
DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[-1], "ready").touch()
time.sleep(60)
"""


class StoringApi(FakeApi):
    """Takes files, as slowly as it is told."""

    seconds = 0.0

    def put_blob(self, job_id: str, fence: int, path: Path) -> StoredFile:
        time.sleep(self.seconds)
        return StoredFile(name=path.name, bytes=1, sha256="0" * 64)


def left(
    chosen: WorkerSettings, api: FakeApi, at_once: Callable[[], bool] = lambda: False
) -> float:
    """Seconds from the order to go, once the trainer is up, to the worker's own end."""
    told: list[float] = []

    def go() -> bool:
        if not told and list(chosen.data_dir.rglob("ready")):
            told.append(time.monotonic())
        return bool(told)

    assert supervise(chosen, api, "w", go, Launcher(chosen), at_once)
    return time.monotonic() - told[0]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_session, "REPORT_SECONDS", 0.1)


def stored_files(api: FakeApi) -> list[str]:
    events = [event for report in api.reports for event in report.events]
    return [file.name for event in events for file in event.files or []]


def test_what_the_trainer_saves_on_leaving_is_stored_before_the_job_is_released(
    tmp_path: Path,
) -> None:
    chosen, api = settings(tmp_path, SAVES), StoringApi()
    assert left(chosen, api) < 10
    assert api.outcome is not None
    assert api.outcome.state == "released"
    assert stored_files(api) == ["a.safetensors"]


def test_the_lease_is_held_while_the_trainer_ends_its_step(tmp_path: Path) -> None:
    chosen, api = settings(tmp_path, DEAF), StoringApi()
    chosen.release_seconds = 1.0
    assert 1.0 <= left(chosen, api) < 8
    assert sum(report.outcome is None for report in api.reports) >= 5
    assert api.outcome is not None
    assert api.outcome.state == "released"


def test_a_store_that_is_too_slow_is_not_waited_for(tmp_path: Path) -> None:
    chosen, api = settings(tmp_path, SAVES), StoringApi()
    chosen.release_seconds, api.seconds = 1.0, 6.0
    assert left(chosen, api) < 5
    assert api.outcome is not None
    assert (api.outcome.state, stored_files(api)) == ("released", [])


def test_a_cancel_does_not_wait_for_what_was_saved(tmp_path: Path) -> None:
    class Cancelling(StoringApi):
        def report(self, job_id: str, report: Report, timeout: float) -> ReportReply:
            reply = super().report(job_id, report, timeout)
            saved = list(chosen.data_dir.rglob("step-3/a.safetensors"))
            return reply.model_copy(update={"control": Control.CANCEL}) if saved else reply

    chosen, api = settings(tmp_path, SAVES), Cancelling()
    api.seconds = 6.0
    assert left(chosen, api) < 5
    assert api.outcome is not None
    assert (api.outcome.state, stored_files(api)) == ("cancelled", [])


def test_at_once_means_at_once(tmp_path: Path) -> None:
    chosen, api = settings(tmp_path, DEAF), StoringApi()
    assert left(chosen, api, at_once=lambda: True) < 5
    assert api.outcome is not None
    assert api.outcome.state == "released"


def test_a_drain_finds_the_workers_of_this_host_and_waits_for_their_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "CLAIM_SECONDS", 0.05)
    chosen = WorkerSettings(data_dir=tmp_path)
    assert drain(chosen, wait=True) == 1
    assert "TUNESMITH_DATA_DIR" in capsys.readouterr().err
    train, light = (
        ShutdownState(chosen, "train@a.b-1-c"),
        ShutdownState(chosen, "light@a.b-2-d"),
    )
    claim = FakeApi().claim("w")
    assert claim is not None
    record = ClaimRecord(chosen, "train@a.b-1-c", claim)
    assert not train.is_requested()
    waiting = threading.Thread(target=drain, args=(chosen,), kwargs={"wait": True})
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive(), "it holds a job"
    assert (train.is_requested(), train.is_immediate(), light.is_requested()) == (
        True,
        False,
        False,
    )
    record.close(reported=True)
    waiting.join(5)
    assert not waiting.is_alive()
    assert capsys.readouterr().out.splitlines() == [
        "train@a.b-1-c: draining: claims no new job",
        "train@a.b-1-c: drained: holds no job and can be stopped",
    ]
    train.close()
    light.close()
    assert list(chosen.workers.iterdir()) == []


def test_sigterm_once_lets_go_and_twice_is_at_once(tmp_path: Path) -> None:
    state = ShutdownState(WorkerSettings(data_dir=tmp_path), "train@here-1-a")
    seen = []
    for _ in range(3):
        seen.append((state.is_requested(), state.is_immediate()))
        state.request()
    state.close()
    assert seen == [(False, False), (True, False), (True, True)]
