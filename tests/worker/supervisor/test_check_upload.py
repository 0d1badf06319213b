"""Reading an upload: in a process of its own, whose end never is the worker's."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunesmith_schema import (
    FileObject,
    FileReading,
    FileValidation,
    ReadingEnd,
    ReadingLease,
    ReadingResult,
)
from tunesmith_worker.supervisor.child.check_upload import (
    ReaderKilled,
    ReadingStopped,
    check_upload,
)
from tunesmith_worker.supervisor.server_api import FencedOut, ServerApi, ServerUnreachable
from tunesmith_worker.supervisor.tasks import read_upload

ROWS = '{"text": "Hi"}\n'


@pytest.fixture
def upload(tmp_path: Path) -> Path:
    path = tmp_path / "upload"
    path.write_text(ROWS)
    return path


def a_reader_that(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the reader's process run `code` instead."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{code}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_a_good_file_gets_its_verdict(upload: Path) -> None:
    findings = check_upload(upload, "rows.jsonl")
    found = findings.result
    assert findings.stats is not None
    assert findings.stats.rows == 1
    assert (found.ok, found.format, found.rows) == (True, "text", 1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the reader crashed with signal 11"),
        ("raise ZeroDivisionError('oh')", "ZeroDivisionError: oh"),
        ("time.sleep(60)", "reading took longer than 1 s; split the file"),
    ],
)
def test_a_file_that_ends_its_reader_gets_a_verdict_that_says_so(
    upload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    a_reader_that(code, tmp_path, monkeypatch)
    found = check_upload(upload, "rows.jsonl", seconds=1).result
    assert (found.ok, found.num_problems, found.problems[0].row) == (False, 1, 0)
    assert found.problems[0].message == f"the file could not be read: {words}"


def test_a_reader_that_somebody_killed_says_nothing_about_the_file(
    upload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_reader_that("os.kill(os.getpid(), signal.SIGKILL)", tmp_path, monkeypatch)
    with pytest.raises(ReaderKilled, match="killed by signal 9"):
        check_upload(upload, "rows.jsonl")


def test_a_reader_has_a_limit_on_its_memory(upload: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tunesmith_worker.trainer.data import check\n"
        "check.BASE_MEMORY = 300 * 2**20\n"
        "check.validate_file = lambda *_: bytearray(2**30)\n"
        "check.main(Path(sys.argv[1]), 'rows.jsonl')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(upload)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("bytes of memory; split the file\n")


def test_a_reader_ends_when_another_worker_has_its_file(
    upload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_reader_that("time.sleep(60)", tmp_path, monkeypatch)
    started = time.monotonic()
    with pytest.raises(ReadingStopped):
        check_upload(upload, "rows.jsonl", stopped=lambda: True)
    assert time.monotonic() - started < 10


class FakeApi(ServerApi):
    """A server with one unread file."""

    def __init__(self, reading: int = 1, away: int = 0, lease_seconds: float = 60.0) -> None:
        self.said: list[str] = []
        self.found: FileValidation | None = None
        self.crashed: bool | None = None
        self._lease_seconds, self._away = lease_seconds, away
        self._newest = reading

    def claim_reading(self, file_id: str, worker_id: str) -> FileReading:
        self.said.append("claim")
        return self._file_reading(self._newest)

    def renew_reading(self, file_id: str, lease: ReadingLease) -> FileReading:
        self.said.append("renew")
        if lease.reading != self._newest:
            raise FencedOut("another worker reads the file")
        return self._file_reading(lease.reading)

    def fetch_file(self, file_id: str, sha256: str, target: Path) -> None:
        self.said.append("fetch")
        target.write_text(ROWS)

    def give_back_reading(self, file_id: str, end: ReadingEnd) -> None:
        self.said.append("give back")
        self.crashed = end.crashed

    def send_reading(self, file_id: str, result: ReadingResult) -> None:
        self.said.append("verdict")
        if self._away:
            self._away -= 1
            raise ServerUnreachable("away")
        self.found = result.result

    def lose_lease(self) -> None:
        self._newest += 1

    def _file_reading(self, reading: int) -> FileReading:
        file = FileObject(
            id="file-1", bytes=1, created_at=1, filename="rows.jsonl", purpose="fine-tune",
            status="uploaded", sha256="0" * 64,
        )  # fmt: skip
        return FileReading(file=file, reading=reading, lease_seconds=self._lease_seconds)


def test_a_file_is_leased_read_and_reported() -> None:
    api = FakeApi()
    read_upload(api, "light-1", "file-1")
    assert api.said == ["claim", "fetch", "verdict"]
    assert api.found is not None
    assert api.found.ok


def test_a_file_that_another_worker_reads_is_left() -> None:
    api = FakeApi(reading=0)
    read_upload(api, "light-1", "file-1")
    assert api.said == ["claim"]


def test_a_long_reading_renews_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading takes five times the lease."""
    found = '{"result": {"ok": true, "rows": 1}}'
    a_reader_that(f"time.sleep(2.5)\nprint({found!r})", tmp_path, monkeypatch)
    api = FakeApi(lease_seconds=0.5)
    read_upload(api, "light-1", "file-1")
    assert api.said.count("renew") >= 10
    assert api.said[-1] == "verdict"


def test_a_reading_whose_lease_is_lost_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_reader_that("time.sleep(60)", tmp_path, monkeypatch)
    api = FakeApi(lease_seconds=0.2)
    monkeypatch.setattr(api, "fetch_file", lambda *_: api.lose_lease())
    started = time.monotonic()
    read_upload(api, "light-1", "file-1")
    assert time.monotonic() - started < 20
    assert api.found is None
    assert "give back" not in api.said, "it belongs to the other worker"


@pytest.mark.parametrize(
    ("code", "crashed"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("os.kill(os.getpid(), signal.SIGTERM)", False),
    ],
)
def test_a_killed_reader_gives_its_file_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, crashed: bool
) -> None:
    a_reader_that(code, tmp_path, monkeypatch)
    api = FakeApi()
    with pytest.raises(ReaderKilled):
        read_upload(api, "light-1", "file-1")
    assert api.said[-1] == "give back"
    assert api.crashed == crashed


def test_a_failed_download_is_not_the_files_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()

    def fail(*_: object) -> None:
        raise ServerUnreachable("away")

    monkeypatch.setattr(api, "fetch_file", fail)
    with pytest.raises(ServerUnreachable):
        read_upload(api, "light-1", "file-1")
    assert (api.said, api.crashed) == (["claim", "give back"], False)


def test_a_verdict_waits_for_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith_worker.supervisor.tasks.SEND_AGAIN_SECONDS", 0.0)
    api = FakeApi(away=3)
    read_upload(api, "light-1", "file-1")
    assert api.said[2:] == ["verdict"] * 4
    assert api.found is not None
