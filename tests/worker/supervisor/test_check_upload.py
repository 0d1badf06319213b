"""Reading an upload: in a process of its own, whose end never is the worker's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunesmith_schema import FileObject, FileValidation
from tunesmith_worker.supervisor import tasks
from tunesmith_worker.supervisor.child.check_upload import ReaderKilled, check_upload
from tunesmith_worker.supervisor.server_api import ServerApi, ServerUnreachable

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
    found = check_upload(upload, "rows.jsonl")
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
    found = check_upload(upload, "rows.jsonl", seconds=1)
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
        "check.validate_file = lambda path, name: bytearray(2**30)\n"
        "check.main(Path(sys.argv[1]), 'rows.jsonl')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(upload)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("bytes of memory; split the file\n")


class FakeApi(ServerApi):
    """A server with one unread file."""

    def __init__(self, status_at_begin: str = "uploaded", away: int = 0) -> None:
        self.said: list[str] = []
        self.found: FileValidation | None = None
        self._status, self._away = status_at_begin, away

    def file(self, file_id: str) -> FileObject:
        return self._object("uploaded")

    def fetch_file(self, file_id: str, sha256: str, target: Path) -> None:
        self.said.append("fetch")
        target.write_text(ROWS)

    def begin_reading(self, file_id: str) -> FileObject:
        self.said.append("begin")
        return self._object(self._status)

    def send_validation(self, file_id: str, found: FileValidation) -> None:
        self.said.append("verdict")
        if self._away:
            self._away -= 1
            raise ServerUnreachable("away")
        self.found = found

    def _object(self, status: Any) -> FileObject:  # Any: a Literal's value
        return FileObject(
            id="file-1", bytes=1, created_at=1, filename="rows.jsonl", purpose="fine-tune",
            status=status, sha256="0" * 64,
        )  # fmt: skip


def test_a_reading_is_announced_after_the_download() -> None:
    api = FakeApi()
    tasks.read_upload(api, "file-1")
    assert api.said == ["fetch", "begin", "verdict"]
    assert api.found is not None
    assert api.found.ok


def test_a_file_that_got_its_verdict_meanwhile_is_left() -> None:
    api = FakeApi(status_at_begin="error")
    tasks.read_upload(api, "file-1")
    assert api.said == ["fetch", "begin"]


def test_a_verdict_waits_for_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SEND_AGAIN_SECONDS", 0.0)
    api = FakeApi(away=3)
    tasks.read_upload(api, "file-1")
    assert api.said[2:] == ["verdict"] * 4
    assert api.found is not None
