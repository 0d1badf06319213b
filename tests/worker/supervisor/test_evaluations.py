"""A worker's part in evaluations on demand: inputs, the process's end, shutdown and lost leases."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tunesmith_schema import JobFailure, StoredFile
from tunesmith_schema.evaluations import (
    ClaimedModel,
    EvaluationClaim,
    EvaluationLease,
    EvaluationOutcome,
    EvaluationRenewal,
)
from tunesmith_schema.worker import ClaimedFile
from tunesmith_worker.rundir.evaluation_spec import EvaluationSpec
from tunesmith_worker.supervisor.device_health import DeviceHealth
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.leased import evaluations
from tunesmith_worker.supervisor.leased.evaluations import evaluate_next
from tunesmith_worker.supervisor.server_api import FencedOut, ServerApi, ServerUnreachable
from tunesmith_worker.supervisor.settings import WorkerSettings

FAILURE = JobFailure.model_validate(
    {"category": "data", "code": "dataset_invalid", "message": "rows.jsonl, row 4: no answer"}
)
RESULT = {"verdict": "v", "metric": "loss", "on": "file", "rows": 9, "file": "f"}
RESULT["rows_available"] = 9


class Server:
    """Fake of the routes for evaluations."""

    def __init__(self, tmp_path: Path, base: str = "tiny") -> None:
        self.outcomes: list[EvaluationOutcome] = []
        self.is_cancelled = False
        self.unreachable = 0
        self.fetched: list[str] = []
        adapter = StoredFile(name="adapter_config.json", bytes=2, sha256="a" * 64)
        self.claims = [
            EvaluationClaim(
                evaluation_id="eval-1",
                fence=1,
                lease_seconds=60,
                model=ClaimedModel(name="ft:tiny", base=base, adapter_files=[adapter]),
                against=ClaimedModel(name=base, base=base),
                file=ClaimedFile(file_id="file-1", filename="Rows.JSONL", bytes=2, sha256="b" * 64),
                on="file",
            )
        ]

    def claim_evaluation(self, worker_id: str) -> EvaluationClaim | None:
        return self.claims.pop() if self.claims else None

    def renew_evaluation(self, evaluation_id: str, lease: EvaluationLease) -> EvaluationRenewal:
        if self.is_cancelled:
            raise FencedOut("cancelled")
        return EvaluationRenewal(lease_seconds=60)

    def fetch_file(self, file_id: str, sha256: str, target: Path) -> None:
        if self.unreachable:
            self.unreachable -= 1
            raise ServerUnreachable("away")
        target.write_text("{}")

    def fetch_evaluated_file(self, claim: EvaluationClaim, file: StoredFile, target: Path) -> None:
        self.fetched.append(file.name)
        target.write_text("{}")

    def end_evaluation(self, evaluation_id: str, outcome: EvaluationOutcome) -> None:
        self.outcomes.append(outcome)


class Process:
    """Fake of the child process: `act` runs at each poll and returns the exit status."""

    pid = 2**22 + 1  # larger than any process id

    def __init__(self, act: Callable[[], int | None]) -> None:
        self._act = act
        self.status: int | None = None
        self.killed = False

    def poll(self) -> int | None:
        if self.status is None:
            self.status = self._act()
        return self.status

    def kill(self) -> None:
        self.killed, self.status = True, -9

    def diagnose_exit(self) -> JobFailure:
        return FAILURE.model_copy(update={"code": "trainer_killed"})


class Host:
    """A worker's host: settings, and a launcher of the fake process."""

    def __init__(self, tmp_path: Path) -> None:
        self.settings = WorkerSettings(
            data_dir=tmp_path / "data", broker_url="memory://", model_dirs=str(tmp_path / "models")
        )
        (tmp_path / "models" / "tiny").mkdir(parents=True)
        (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
        (tmp_path / "data").mkdir(mode=0o700)
        self.stops = False
        self.folder = self.settings.run_dir("eval-1", 1)
        self.act: Callable[[], int | None] = lambda: 0
        self.process: Process | None = None
        self.warm = 0

    def launch_evaluation(self, folder: Path) -> Process:
        assert folder == self.folder
        self.process = Process(self.act)
        return self.process

    def keep_warm_trainer(self) -> None:
        self.warm += 1

    def close(self) -> None:
        """No process is warm."""

    def run(self, server: Server) -> bool:
        return evaluate_next(
            self.settings,
            cast(ServerApi, server),
            "worker-1",
            lambda: self.stops,
            cast(Launcher, self),
            DeviceHealth(self.settings.data_dir, lambda: None),
        )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(evaluations, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(evaluations, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(evaluations, "_AGAIN_SECONDS", 0.01)
    return Host(tmp_path)


def write(path: Path, value: Any) -> int:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return 0


def test_the_inputs_are_fetched_and_the_result_is_sent(host: Host, tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.unreachable = 2
    specs: list[EvaluationSpec] = []

    def act() -> int:
        specs.append(EvaluationSpec.model_validate_json((host.folder / "spec.json").read_bytes()))
        assert (host.folder / specs[0].file).is_file()
        return write(host.folder / "evaluation.json", RESULT)

    host.act = act
    assert host.run(server)
    assert not host.run(server)  # nothing else waits
    [spec] = specs
    assert (spec.file, spec.file_name) == ("data/rows.jsonl", "Rows.JSONL")
    assert spec.model.base == str(tmp_path / "models" / "tiny")
    assert spec.model.adapter is not None
    assert (Path(spec.model.adapter) / "adapter_config.json").is_file()
    assert spec.against is not None
    assert (spec.against.name, spec.against.adapter) == ("tiny", None)
    [outcome] = server.outcomes
    assert (outcome.state, outcome.fence, outcome.worker_id) == ("succeeded", 1, "worker-1")
    assert outcome.result is not None
    assert outcome.result.verdict == "v"
    assert not host.folder.exists()
    assert host.warm == 1


def test_failures_are_sent_with_their_reason(host: Host, tmp_path: Path) -> None:
    def act() -> int:
        write(host.folder / "failure.json", FAILURE.model_dump_json())
        return 1

    host.act = act
    server = Server(tmp_path)
    assert host.run(server)
    [outcome] = server.outcomes
    assert (outcome.state, outcome.error) == ("failed", FAILURE)
    assert host.folder.is_dir()  # with the log


def test_a_base_model_that_is_gone_is_named(host: Host, tmp_path: Path) -> None:
    server = Server(tmp_path, base="gone")
    assert host.run(server)
    [outcome] = server.outcomes
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.param) == ("base_model_gone", "model")
    assert "gone" in outcome.error.message


def test_a_killed_process_is_a_crash(host: Host, tmp_path: Path) -> None:
    host.act = lambda: -9
    server = Server(tmp_path)
    assert host.run(server)
    [outcome] = server.outcomes
    assert outcome.state == "crashed"


def test_a_shutdown_releases_the_evaluation(host: Host, tmp_path: Path) -> None:
    def act() -> None:
        host.stops = True

    host.act = act
    server = Server(tmp_path)
    assert host.run(server)
    assert [outcome.state for outcome in server.outcomes] == ["released"]
    assert host.process is not None
    assert host.process.killed


def test_a_cancelled_evaluation_is_killed_and_not_reported(host: Host, tmp_path: Path) -> None:
    server = Server(tmp_path)

    def act() -> None:
        server.is_cancelled = True
        time.sleep(0.01)

    host.act = act
    assert host.run(server)
    assert server.outcomes == []
    assert host.process is not None
    assert host.process.killed
