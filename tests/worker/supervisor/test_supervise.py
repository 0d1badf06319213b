"""The supervisor against a server that is away, refuses, or wants the job stopped."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith_schema import (
    Claim,
    ClaimedFile,
    Control,
    Hyperparameters,
    Recipe,
    ReinforcementHyperparameters,
    Report,
    ReportReply,
    RunSpec,
    StoredFile,
)
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.supervisor import job_session, server_commands, uploads
from tunesmith_worker.supervisor.downloads.fetch import fetch_inputs
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.server_api import (
    ServerApi,
    ServerFault,
    ServerRefused,
    ServerUnreachable,
)
from tunesmith_worker.supervisor.settings import WorkerSettings
from tunesmith_worker.supervisor.supervise import supervise

DATA = b'{"text": "hello"}\n'
EVENT = (
    '{{"source_seq": {seq}, "created_at": 1.0, "kind": "{kind}", "message": "m", "data": {data}}}'
)
SAVED = EVENT.format(seq=50, kind="checkpoint", data='{"step": 1, "directory": "checkpoints/s1"}')

TRAINER = """
import json, pathlib, signal, sys, time
root = pathlib.Path(sys.argv[-1])
def say(line):
    with (root / "events.jsonl").open("a") as file:
        file.write(line + "\\n")
def save(folder):
    (root / folder).mkdir(parents=True)
    (root / folder / "weights.safetensors").write_bytes(b"w")
def end(outcome):
    (root / "result.json").write_text(json.dumps(
        {"outcome": outcome, "kind": "lora", "directory": "adapter", "step": 3}))
"""


class FakeApi(ServerApi):
    """Answers in memory; what a test plants goes wrong."""

    identity = WorkerIdentity.new("train")

    attempt = 1

    def __init__(self, base_files: list[StoredFile] | None = None) -> None:
        self.reports: list[Report] = []
        self.control = Control.CONTINUE
        self.on_report: Callable[[Report], None] = lambda report: None
        self.on_put: Callable[[Path], None] = lambda path: None
        self.puts = 0
        self.base_files = base_files

    def claim(self, worker_id: str) -> Claim:
        digest = hashlib.sha256(DATA).hexdigest()
        return Claim(
            job_id="ftjob-1", attempt=self.attempt, fence=1, lease_seconds=8.0,
            queued_seconds=417.0, recipe=Recipe(), seed=0, hyperparameters=Hyperparameters(),
            model="ft:tiny" if self.base_files else "acme/tiny", base_files=self.base_files,
            training_file=ClaimedFile(file_id="f", filename="a.jsonl", bytes=1, sha256=digest),
        )  # fmt: skip

    def report(self, job_id: str, report: Report, timeout: float) -> ReportReply:
        self.on_report(report)
        self.reports.append(report)
        seq = max((e.source_seq for r in self.reports for e in r.events), default=0)
        return ReportReply(control=self.control, accepted_seq=seq, lease_seconds=8.0)

    def put_blob(self, job_id: str, fence: int, path: Path) -> StoredFile:
        self.puts += 1
        self.on_put(path)
        return StoredFile(name=path.name, bytes=1, sha256="0" * 64)

    def fetch_file(self, file_id: str, sha256: str, target: Path) -> None:
        target.write_bytes(DATA)

    def fetch_base_file(self, job_id: str, fence: int, file: StoredFile, target: Path) -> None:
        target.write_bytes(b"x" * file.bytes)

    @property
    def outcome(self) -> Any:
        return self.reports[-1].outcome

    @property
    def messages(self) -> list[str]:
        return [event.message for report in self.reports for event in report.events]


Run = Callable[..., FakeApi]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Supervises one job whose trainer is the given program."""
    monkeypatch.setattr(job_session, "REPORT_SECONDS", 0.05)
    monkeypatch.setattr(uploads, "FIRST_DELAY_SECONDS", 0.05)

    def supervised(
        api: FakeApi, program: str, stopping: Callable[[], bool] = lambda: False
    ) -> FakeApi:
        python = tmp_path / "python"
        python.write_text(f"#!{sys.executable}\n{TRAINER}\n{program}\n")
        python.chmod(0o755)
        settings = WorkerSettings(
            data_dir=tmp_path / "data", trainer_python=str(python), warm_trainer=False
        )
        assert supervise(settings, api, "worker-1", stopping, Launcher(settings))
        return api

    return supervised


def test_what_the_trainer_made_is_stored_and_reported(run: Run) -> None:
    api = run(
        FakeApi(), f"save('checkpoints/s1'); say('{SAVED}'); save('adapter'); end('succeeded')"
    )
    assert api.outcome.state == "succeeded"
    assert [file.name for file in api.outcome.files] == ["weights.safetensors"]
    assert api.puts == 2
    assert "queued 417 s" in api.messages


def test_the_next_attempt_on_a_host_goes_by_the_plan_of_the_last(run: Run, tmp_path: Path) -> None:
    run(FakeApi(), "(root / 'plan.json').write_text('settled'); save('adapter'); end('succeeded')")
    again = FakeApi()
    again.attempt = 2
    run(again, "assert (root / 'plan.json').read_text() == 'settled'; end('stopped')")
    assert again.outcome.state == "released"


@pytest.mark.parametrize(
    ("end", "state"), [("os.kill(os.getpid(), 9)", "failed"), ("end('stopped')", "released")]
)
def test_no_users_data_stays_half_written(run: Run, tmp_path: Path, end: str, state: str) -> None:
    tokens = "part = root / '.tokens-x.part'; part.mkdir(); (part / 'tokens.arrow').touch()"
    json = "import os; (root / '.plan.json.part').touch(); (root / 'plan.json').touch()"
    api = run(FakeApi(), f"{tokens}; {json}; {end}")
    assert api.outcome.state == state
    left = {path.name for path in (tmp_path / "data/runs/ftjob-1/attempt-1").iterdir()}
    assert "plan.json" in left
    assert not [name for name in left if name.endswith(".part")]


def test_a_checkpoint_that_cannot_be_stored_does_not_cost_the_run(run: Run) -> None:
    def refuse(path: Path) -> None:
        if "checkpoints" in path.parts:
            raise ServerRefused("no room for checkpoints")

    api = FakeApi()
    api.on_put = refuse
    run(api, f"save('checkpoints/s1'); say('{SAVED}'); save('adapter'); end('succeeded')")
    assert api.outcome.state == "succeeded"
    assert any("was not stored: no room for checkpoints" in text for text in api.messages)


def test_storage_that_stays_broken_fails_the_job_with_its_words(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> None:
        raise ServerFault("PUT: internal error: OSError")

    monkeypatch.setattr(uploads, "MAX_DELAY_SECONDS", 0.05)
    api = FakeApi()
    api.on_put = broken
    run(api, "save('adapter'); end('succeeded')")
    assert api.outcome.state == "failed"
    assert "internal error: OSError" in api.outcome.error.message
    assert api.puts == uploads.MAX_FAULTS


def test_a_report_that_is_refused_fails_the_job_at_once(run: Run) -> None:
    def refuse(report: Report) -> None:
        if any(event.source_seq == 50 for event in report.events):
            raise ServerRefused("event 50 makes no sense")

    api = FakeApi()
    api.on_report = refuse
    line = EVENT.format(seq=50, kind="message", data="{}")
    run(api, f"say('{line}'); time.sleep(30)")
    assert api.outcome.state == "failed"
    assert "event 50 makes no sense" in api.outcome.error.message


def test_a_run_that_finishes_while_its_worker_leaves_is_kept(run: Run) -> None:
    stop = threading.Event()
    api = FakeApi()
    api.on_put = lambda path: stop.set()
    run(api, "save('adapter'); end('succeeded')", stopping=stop.is_set)
    assert api.outcome.state == "succeeded"


def test_a_leaving_worker_releases_an_unfinished_job(run: Run) -> None:
    stop = threading.Event()
    api = FakeApi()
    api.on_report = lambda report: stop.set()
    program = (
        "def leave(*_): end('stopped'); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, leave); time.sleep(30)"
    )
    run(api, program, stopping=stop.is_set)
    assert api.outcome.state == "released"


def test_a_cancelled_trainer_is_gone_and_nothing_is_stored(run: Run) -> None:
    api = FakeApi()
    api.control = Control.CANCEL
    run(api, "save('adapter'); time.sleep(30)")
    assert api.outcome.state == "cancelled"
    assert api.puts == 0


STARTED = f"say('{EVENT.format(seq=50, kind='message', data='{}')}')"
SAVES = """
def leave(*_):
    for i in range(6):
        time.sleep(0.2)
        save(f'checkpoints/.part-{i}')
    end('stopped')
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
"""
HANGS = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def pausing(api: FakeApi) -> FakeApi:
    """Orders a pause once the trainer has begun."""

    def pause(report: Report) -> None:
        if any(event.source_seq == 50 for event in report.events):
            api.control = Control.PAUSE

    api.on_report = pause
    return api


def test_a_trainer_that_pauses_is_let_finish_saving_while_the_lease_is_held(run: Run) -> None:
    api = run(pausing(FakeApi()), f"{SAVES}\n{STARTED}; time.sleep(30)")
    assert api.outcome.state == "released"
    told = next(i for i, r in enumerate(api.reports) if any(e.source_seq == 50 for e in r.events))
    assert len(api.reports) > told + 10, "one in 0.05 s, over 1.2 s of saving"


def test_a_job_cancelled_while_what_it_saved_for_its_pause_is_stored_waits_for_nothing(
    run: Run,
) -> None:
    api = pausing(FakeApi())
    cancelled = threading.Event()

    def store(path: Path) -> None:
        time.sleep(1.0)  # by then the trainer is gone
        api.control = Control.CANCEL
        assert cancelled.wait(20), "the upload held up the end"

    api.on_put = store
    saves = SAVES.replace("end('stopped')", f"say('{SAVED}'.replace('50', '51')); end('stopped')")
    saves = saves.replace("checkpoints/.part-{i}", "checkpoints/s{i}")
    try:
        run(api, f"{saves}\n{STARTED}; time.sleep(30)")
        assert not cancelled.is_set()
    finally:
        cancelled.set()
    assert api.outcome.state == "cancelled"


def test_a_trainer_that_hangs_when_told_to_pause_is_ended_and_the_job_released(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_commands, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(server_commands, "CHECK_SECONDS", 0.05)
    api = run(pausing(FakeApi()), f"{HANGS}\n{STARTED}; time.sleep(60)")
    assert api.outcome.state == "released"
    assert any("did not pause within" in message for message in api.messages)


def test_a_pause_before_there_is_a_trainer_releases_at_once(run: Run) -> None:
    api = FakeApi()
    api.control = Control.PAUSE
    run(api, "time.sleep(60)")
    assert api.outcome.state == "released"


def test_a_stop_reaches_the_trainer_once_as_a_file(run: Run) -> None:
    api = FakeApi()
    api.control = Control.STOP
    program = (
        "while not (root / 'control.json').exists(): time.sleep(0.02)\n"
        "assert json.loads((root / 'control.json').read_text()) == {'action': 'stop'}\n"
        "(root / 'control.json').unlink(); time.sleep(0.5)\n"
        "assert not (root / 'control.json').exists()\n"
        "save('adapter'); end('succeeded')"
    )
    run(api, program)
    assert (api.outcome.state, api.outcome.step) == ("succeeded", 3)


def test_a_server_that_is_away_is_asked_at_the_usual_pace(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_session, "REPORT_SECONDS", 0.5)
    tries = []

    def away(report: Report) -> None:
        tries.append(report)
        if len(tries) < 4:
            raise ServerUnreachable("connection refused")

    api = FakeApi()
    api.on_report = away
    run(api, "time.sleep(1.2); save('adapter'); end('succeeded')")
    assert api.outcome.state == "succeeded"
    assert len(tries) < 10


def test_the_spec_has_the_method_of_the_claim(tmp_path: Path) -> None:
    api = FakeApi([StoredFile(name="model.safetensors", bytes=1, sha256="0" * 64)])
    sent = api.claim("w").model_dump(mode="json")
    sent |= {
        "method": "reinforcement",
        "grader": {"type": "regex", "pattern": "yes"},
        "hyperparameters": {"eval_samples": 2},
    }
    claim = Claim.model_validate(sent)
    root = tmp_path / "run"
    (root / "data").mkdir(parents=True)
    events = EventLog(root / "events.jsonl")
    settings = WorkerSettings(data_dir=tmp_path)
    spec = fetch_inputs(settings, api, claim, root, lambda call: call(), events)
    read = RunSpec.model_validate_json(spec.model_dump_json())
    assert read.training_file_name == claim.training_file.filename
    assert (read.method, read.grader, read.hyperparameters) == (
        "reinforcement",
        claim.grader,
        ReinforcementHyperparameters(eval_samples=2),
    )


def test_two_workers_that_fetch_one_base_model_get_it_whole(tmp_path: Path) -> None:
    files = [StoredFile(name="model.safetensors", bytes=1 << 20, sha256="0" * 64)]
    api = FakeApi(files)
    settings = WorkerSettings(data_dir=tmp_path)
    found: list[str] = []

    def fetch(root: Path) -> None:
        (root / "data").mkdir(parents=True)
        events = EventLog(root / "events.jsonl")
        spec = fetch_inputs(settings, api, api.claim("w"), root, lambda call: call(), events)
        found.append(spec.model_path)

    threads = [threading.Thread(target=fetch, args=(tmp_path / str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    (folder,) = set(found)
    assert (Path(folder) / "model.safetensors").stat().st_size == 1 << 20
    assert [path.name for path in (tmp_path / "models").iterdir()] == [Path(folder).name]
