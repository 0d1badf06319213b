"""The server's log: no request and no worker can write a line of its own."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tunesmith_server.__main__ import main
from tunesmith_server.core.storage import StorageUnavailable

from .actors import Server
from .callers import event

FORGED = "2026-01-01 00:00:00,000 INFO tunesmith.access: DELETE /v1/models 200 1.0 ms req-1"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: .*|    \| .*")
BREAKS = ["\n", "\r\n", "\x1b[2K\r", "\u2028"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[io.StringIO]:
    """What the root logger writes once the command line has set it up."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TUNESMITH_DATA_DIR", str(tmp_path / "keys"))
    assert main(["keys", "list"]) == 0
    yield stream
    root.handlers = handlers
    root.setLevel(level)


def check(log: io.StringIO) -> list[str]:
    """The lines of the log, each with a time and a level, none of them forged."""
    text = log.getvalue().removesuffix("\n")
    lines = text.split("\n")
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert [line for line in text.splitlines() if line.startswith(FORGED)] == []
    return lines


@pytest.mark.parametrize("between", BREAKS)
def test_a_path_cannot_forge_a_line(server: Server, log: io.StringIO, between: str) -> None:
    server.user.get("/v1/files/" + quote(f"x 200{between}{FORGED}"))
    server.user.delete("/internal/" + quote(f"{between}{FORGED}"))
    assert any("DELETE /v1/models" in line for line in check(log)), "it was logged"


def test_headers_ids_and_names_cannot_forge_a_line(server: Server, log: io.StringIO) -> None:
    server.user.get("/v1/files", headers={"x-request-id": f"a\t{FORGED}"})
    server.user.get("/v1/files", headers={"x-request-id": "a" * 100})
    file_id = server.upload(filename=f"a\n{FORGED}")
    server.create_reply(file_id, model=f"a\n{FORGED}", suffix=f"a\n{FORGED}")
    server.worker.hello(f"w\n{FORGED}", host=f"h\n{FORGED}", not_ready=f"r\n{FORGED}")
    server.user.post("/v1/fine_tuning/jobs", headers={"idempotency-key": FORGED}, content=b"{")
    check(log)


def test_a_workers_messages_cannot_forge_a_line(
    server: Server, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    bad = {**event(1), "kind": f"k\n{FORGED}"}
    server.worker.report(claim, events=[bad], run_report={f"\n{FORGED}": 1})

    def fail(sha256: str) -> int:
        raise StorageUnavailable(f"no answer\n{FORGED}")

    monkeypatch.setattr(server.storage, "size", fail)
    files = [{"name": "a", "bytes": 1, "sha256": "0" * 64}]
    checkpoint = event(2, kind="checkpoint", data={"step": 1}, files=files)
    server.worker.report(claim, events=[checkpoint])
    assert any("no answer" in line for line in check(log)), "it was logged"


def test_a_traceback_cannot_forge_a_line(
    server: Server, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sha256: str) -> int:
        raise KeyError(f"bug\n{FORGED}", f"bug\r{FORGED}") from RuntimeError(f"a\n{FORGED}")

    monkeypatch.setattr(server.storage, "put", lambda *_: fail(""))
    upload = {"file": ("a", b"x")}
    reply = server.user.post("/v1/files", files=upload, data={"purpose": "fine-tune"})
    assert reply.status_code == 500
    assert any("Traceback" in line for line in check(log)), "it was logged"
