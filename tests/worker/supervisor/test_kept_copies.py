"""The worker's copy of adapters and samples: kept until the server has verified and accepted it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.worker.rundir.test_samples import Supervised, sample
from tests.worker.supervisor.test_disk_full import settings
from tests.worker.supervisor.test_supervise import TRAINER, FakeApi
from tunesmith_schema import Report
from tunesmith_worker.rundir.samples import write_samples
from tunesmith_worker.supervisor import job_session
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.server_api import (
    ContentMissing,
    FencedOut,
    ServerApi,
    ServerFault,
    ServerRefused,
)
from tunesmith_worker.supervisor.supervise import supervise

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def put(tmp_path: Path, answer: Callable[[httpx.Request], httpx.Response]) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(CONTENT)
    api = ServerApi(
        settings(tmp_path, ""), WorkerIdentity.new("train"), transport=httpx.MockTransport(answer)
    )
    api.put_blob("ftjob-1", 1, file)


def stored(**fields: object) -> Callable[[httpx.Request], httpx.Response]:
    body = {"name": "blob", "bytes": len(CONTENT), "sha256": SHA256, **fields}
    return lambda request: httpx.Response(200, json=body)


def test_a_server_that_stored_the_content_says_so(tmp_path: Path) -> None:
    put(tmp_path, stored())


@pytest.mark.parametrize("fields", [{"sha256": "0" * 64}, {"bytes": 3}], ids=["sha256", "bytes"])
def test_a_server_that_stored_something_else_is_asked_again(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    with pytest.raises(ServerFault, match=r"stored other content.*weights\.safetensors"):
        put(tmp_path, stored(**fields))


def refusal(code: str) -> Callable[[httpx.Request], httpx.Response]:
    error = {"message": "the body's sha256 is 1, not 2", "code": code}
    return lambda request: httpx.Response(400, json={"error": error})


def test_a_transfer_that_was_damaged_is_repeated(tmp_path: Path) -> None:
    """A ServerFault is tried again; a ServerRefused would fail the job and throw its work away."""
    with pytest.raises(ServerFault, match="sha256 is 1"):
        put(tmp_path, refusal("upload_mismatch"))
    with pytest.raises(ServerRefused):
        put(tmp_path, refusal("invalid_request"))


def test_samples_stay_until_the_server_has_accepted_the_event(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path)
    for step in (1, 2):
        write_samples(supervised.run, supervised.log, step, [sample()])
    first, second = supervised.until(lambda: supervised.all_ready() and len(supervised.feed) == 2)
    assert first.files
    assert second.files

    def kept() -> list[str]:
        supervised.uploads.update()
        return sorted(path.name for path in supervised.run.samples.iterdir())

    assert kept() == ["step-000001.jsonl", "step-000002.jsonl"], "stored, but not accepted"
    supervised.feed.confirm(first.source_seq)
    assert kept() == ["step-000002.jsonl"]
    supervised.feed.confirm(second.source_seq)
    supervised.uploads.close()
    assert list(supervised.run.samples.iterdir()) == []


def run_job(tmp_path: Path, on_report: Callable[[Report], None]) -> list[Path]:
    given = settings(tmp_path, TRAINER + '\nsave("adapter")\nend("succeeded")\n')
    api = FakeApi()
    api.on_report = on_report
    assert supervise(given, api, "worker-1", lambda: False, Launcher(given))
    return list(tmp_path.rglob("weights.safetensors"))


def test_an_adapter_stays_if_its_report_is_not_accepted(tmp_path: Path) -> None:
    def refuse(report: Report) -> None:
        if report.outcome is not None:
            raise FencedOut("the claim with fencing token 1 no longer holds the job")

    assert [path.read_bytes() for path in run_job(tmp_path, refuse)] == [b"w"]


def test_an_adapter_leaves_the_worker_once_its_report_is_accepted(tmp_path: Path) -> None:
    assert run_job(tmp_path, lambda report: None) == []


@pytest.mark.parametrize(("losses", "state", "puts"), [(2, "succeeded", 3), (99, "failed", 4)])
def test_content_that_the_store_has_lost_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int, state: str, puts: int
) -> None:
    monkeypatch.setattr(job_session, "REPORT_SECONDS", 0.05)
    refused: list[Report] = []

    def lose(report: Report) -> None:
        if report.outcome is not None and report.outcome.files and len(refused) < losses:
            refused.append(report)
            raise ContentMissing("no stored content for 'weights.safetensors'")

    given = settings(tmp_path, TRAINER + '\nsave("adapter")\nend("succeeded")\n')
    api = FakeApi()
    api.on_report = lose
    assert supervise(given, api, "worker-1", lambda: False, Launcher(given))
    assert (api.outcome.state, api.puts) == (state, puts)
    if state == "failed":
        assert "no stored content for 'weights.safetensors'" in api.outcome.error.message
    kept = list(tmp_path.rglob("weights.safetensors"))
    assert bool(kept) == (state == "failed"), "the copy stays until the server has accepted it"


def test_a_refusal_for_missing_content_has_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(ContentMissing):
        put(tmp_path, refusal("content_missing"))
