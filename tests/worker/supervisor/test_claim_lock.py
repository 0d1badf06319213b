"""Claims whose supervisor died: the process that finds the record reports them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.service import alive, until
from tunesmith_schema import Outcome, Report, ReportReply
from tunesmith_worker.supervisor import claim_lock as claim_record
from tunesmith_worker.supervisor.claim_lock import ClaimRecord, report_orphans
from tunesmith_worker.supervisor.server_api import FencedOut, ServerUnreachable
from tunesmith_worker.supervisor.settings import WorkerSettings

from .test_disk_full import FakeApi, settings, supervised

HOLDER = """
import subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.worker.supervisor.test_disk_full import FakeApi
from tunesmith_worker.supervisor.claim_lock import ClaimRecord
from tunesmith_worker.supervisor.settings import WorkerSettings
settings = WorkerSettings(data_dir=Path({data!r}))
claim = FakeApi().claim("w")
record = ClaimRecord(settings, "train@here-1-a", claim)
run_dir = settings.run_dir(claim.job_id, claim.attempt)
run_dir.mkdir(parents=True)
child = subprocess.Popen(["sleep", "60"], cwd=run_dir, start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


class DownApi(FakeApi):
    def report(self, job_id: str, report: Report, timeout: float) -> ReportReply:
        raise ServerUnreachable("connection refused")


class OtherHasIt(FakeApi):
    def report(self, job_id: str, report: Report, timeout: float) -> ReportReply:
        raise FencedOut("the claim with fencing token 1 no longer holds the job")


@pytest.fixture
def chosen(tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(data_dir=tmp_path / "data")


@pytest.fixture
def holder(chosen: WorkerSettings) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds a claim, and one that it started for it, which outlives it."""
    root = str(Path(__file__).parents[3])
    code = HOLDER.format(root=root, data=str(chosen.data_dir))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process, child
    for pid in (process.pid, child):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_a_holder_that_dies_is_told_of_once_and_its_processes_are_ended(
    chosen: WorkerSettings, holder: tuple[subprocess.Popen[str], int]
) -> None:
    process, child = holder
    api = FakeApi()
    report_orphans(chosen, api)
    assert api.reports == [], "it lives"
    assert alive(child)
    process.kill()
    process.wait()
    for _ in range(2):
        report_orphans(chosen, api)
    (report,) = api.reports
    assert report.outcome is not None
    assert report.outcome.error is not None
    assert (report.fence, report.attempt) == (1, 1)
    assert (report.outcome.state, report.outcome.error.code) == ("failed", "worker_lost")
    assert f"lost process {process.pid}" in report.outcome.error.message
    until(lambda: not alive(child), 5)
    assert list(chosen.claims.iterdir()) == []


def left_behind(chosen: WorkerSettings, *outcomes: Outcome) -> None:
    claim = FakeApi().claim("w")
    assert claim is not None
    record = ClaimRecord(chosen, "train@here-1-a", claim)
    for outcome in outcomes:
        record.record_outcome(outcome)
    record.close(reported=False)


@pytest.mark.parametrize(
    ("ended", "told"),
    [("released", "released"), ("cancelled", "cancelled"), ("succeeded", "released")],
)
def test_an_end_that_could_not_be_told_is_told_later_and_not_charged(
    chosen: WorkerSettings, ended: str, told: str
) -> None:
    files = [{"name": "a", "bytes": 1, "sha256": "0" * 64}] if ended == "succeeded" else []
    left_behind(chosen, Outcome.model_validate({"state": ended, "files": files}))
    report_orphans(chosen, DownApi())
    assert len(list(chosen.claims.iterdir())) == 1, "a server that is away is asked again"
    api = FakeApi()
    report_orphans(chosen, api)
    assert api.outcome is not None
    assert (api.outcome.state, api.outcome.files) == (told, [])


def test_a_job_that_another_has_is_forgotten(chosen: WorkerSettings) -> None:
    left_behind(chosen)
    report_orphans(chosen, OtherHasIt())
    assert list(chosen.claims.iterdir()) == []


def test_half_a_record_is_forgotten(chosen: WorkerSettings) -> None:
    chosen.claims.mkdir(parents=True)
    (chosen.claims / "train@here-1-a--ftjob-1-1.json").write_text('{"worker_id": "tr')
    api = FakeApi()
    report_orphans(chosen, api)
    assert (api.reports, list(chosen.claims.iterdir())) == ([], [])


def test_a_run_that_has_ended_leaves_no_record(tmp_path: Path) -> None:
    chosen = settings(tmp_path, "raise SystemExit(3)")
    assert supervised(chosen, FakeApi())
    assert list(chosen.claims.iterdir()) == []


def test_the_worker_of_a_record_is_in_its_name(chosen: WorkerSettings) -> None:
    left_behind(chosen)
    (path,) = chosen.claims.iterdir()
    assert claim_record.holder_of(path) == "train@here-1-a"
