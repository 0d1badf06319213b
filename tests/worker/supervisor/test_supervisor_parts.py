"""The supervisor's parts: the event feed, the trainer as a process, names of base models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunesmith_schema import MAX_EVENTS_PER_REPORT, EventKind, StoredFile
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import remove_unused
from tunesmith_worker.supervisor import base_models
from tunesmith_worker.supervisor.child.spawn import TrainerProgram, trainer_environment
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.event_reader import EventReader
from tunesmith_worker.supervisor.settings import WorkerSettings


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).message("one")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"source_seq": 2, "crea')
    feed = EventReader(path)
    feed.read()
    assert [event.message for event in feed.batch()] == ["one"]
    with path.open("ab") as file:
        file.write(b'ted_at": 1.0, "message": "two"}\n')
    feed.read()
    assert [event.message for event in feed.batch()] == ["one", "two"]


def test_events_are_given_again_until_they_are_stored(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for text in ("one", "two", "three"):
        log.message(text)
    feed = EventReader(tmp_path / "events.jsonl")
    feed.read()
    feed.confirm(2)
    assert [event.source_seq for event in feed.batch()] == [3]
    feed.confirm(3)
    assert len(feed) == 0


def test_a_checkpoint_holds_up_later_events_until_its_files_are_stored(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.message("before")
    log.append(EventKind.CHECKPOINT, "saved", {"step": 1, "directory": "checkpoints/step-1"})
    log.message("after")
    feed = EventReader(tmp_path / "events.jsonl")
    feed.read()
    assert [event.message for event in feed.batch()] == ["before"]
    waiting = feed.next_upload()
    assert waiting is not None
    waiting.files = [StoredFile(name="a", bytes=1, sha256="0" * 64)]
    assert [event.message for event in feed.batch()] == ["before", "saved", "after"]


def test_a_cancelled_run_reports_its_checkpoints_without_files(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append(EventKind.CHECKPOINT, "saved", {"step": 1, "directory": "checkpoints/step-1"})
    feed = EventReader(tmp_path / "events.jsonl")
    feed.read()
    feed.abandon_uploads()
    assert [event.files for event in feed.batch()] == [[]]


def test_a_report_never_carries_more_events_than_the_server_takes(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for number in range(MAX_EVENTS_PER_REPORT + 1):
        log.message(str(number))
    feed = EventReader(tmp_path / "events.jsonl")
    feed.read()
    assert len(feed.batch()) == MAX_EVENTS_PER_REPORT


def test_the_phase_shown_is_the_one_going_on(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append(EventKind.PHASE, "load took 1 s", {"phase": "load", "seconds": 1.0})
    feed = EventReader(tmp_path / "events.jsonl")
    feed.read()
    assert feed.phase == "data"


def test_a_trainer_gets_no_setting_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNESMITH_WORKER_TOKEN", "TUNESMITH_BROKER_URL", "TUNESMITH_API_KEY"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in json.dumps(trainer_environment())


@pytest.mark.parametrize(("asked", "disabled"), [(None, "True"), ("0", "False")])
def test_a_trainer_reports_no_usage_unless_told(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, disabled: str
) -> None:
    """TRL sends the type of the model and of the GPU to the Hugging Face Hub by default."""
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    if asked is not None:
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", asked)
    program = "from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_TELEMETRY)"
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=trainer_environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert printed.stdout.strip() == disabled


def stand_in(tmp_path: Path, code: str) -> TrainerProcess:
    """A trainer whose interpreter runs `code` instead."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{code}\n")
    python.chmod(0o755)
    return TrainerProcess(tmp_path, TrainerProgram(python=str(python)))


def ended(process: TrainerProcess) -> TrainerProcess:
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is not None
    return process


def test_a_crash_is_reported_with_status_and_the_end_of_the_log(tmp_path: Path) -> None:
    process = ended(stand_in(tmp_path, "import sys; print('the last words'); sys.exit(3)"))
    failure = process.diagnose_exit()
    assert failure.code == "trainer_crashed"
    assert "status 3" in failure.message
    assert "the last words" in failure.message


def test_a_paused_trainer_can_still_be_stopped(tmp_path: Path) -> None:
    process = stand_in(tmp_path, "import time; time.sleep(60)")
    process.pause()
    process.ask_to_stop()
    ended(process)


def test_killing_a_trainer_kills_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    process = stand_in(
        tmp_path,
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)",
    )
    deadline = time.monotonic() + 10
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    while stat.exists() and stat.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    for folder in ("allowed/tiny", "allowed/team/deep", "outside"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    return WorkerSettings(data_dir=tmp_path / "data", model_dirs=str(tmp_path / "allowed"))


def test_a_folder_name_leads_below_an_allowed_directory(
    settings: WorkerSettings, tmp_path: Path
) -> None:
    assert base_models.model_names(settings) == ["tiny"]
    assert base_models.resolve(settings, "tiny") == str(tmp_path / "allowed" / "tiny")
    assert base_models.resolve(settings, "team/deep") == str(tmp_path / "allowed/team/deep")


@pytest.mark.parametrize("name", ["../outside", "org/model", "tiny/../../outside"])
def test_anything_else_is_left_to_the_hub(settings: WorkerSettings, name: str) -> None:
    assert base_models.resolve(settings, name) == name


def test_a_worker_without_broker_or_token_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TUNESMITH_BROKER_URL"):
        WorkerSettings(data_dir=tmp_path).check()
    with pytest.raises(ValueError, match="TUNESMITH_WORKER_TOKEN"):
        WorkerSettings(data_dir=tmp_path, broker_url="memory://").check()


def test_old_runs_are_removed_and_those_still_written_to_kept(tmp_path: Path) -> None:
    past = time.time() - 3600
    for job in ("ftjob-old", "ftjob-long"):
        attempt = tmp_path / job / "attempt-1"
        attempt.mkdir(parents=True)
        (attempt / "events.jsonl").touch()
        for path in (attempt / "events.jsonl", attempt, tmp_path / job):
            os.utime(path, (past, past))
    os.utime(tmp_path / "ftjob-long" / "attempt-1" / "events.jsonl")
    remove_unused(tmp_path, older_than=600)
    assert [folder.name for folder in tmp_path.iterdir()] == ["ftjob-long"]


def test_a_worker_starts_while_another_renames_what_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / "ftjob-busy" / ".plan.json.part"
    part.parent.mkdir()
    part.touch()
    found = Path.rglob

    def renamed_meanwhile(folder: Path, pattern: str) -> list[Path]:
        paths = list(found(folder, pattern))
        part.rename(part.with_name("plan.json"))
        return paths

    monkeypatch.setattr(Path, "rglob", renamed_meanwhile)
    remove_unused(tmp_path, older_than=600)
    assert (tmp_path / "ftjob-busy" / "plan.json").exists()
