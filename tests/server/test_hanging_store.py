"""A store that hangs or is away: leases are renewed, and commands reach the workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tunesmith_server.api import file_checks
from tunesmith_server.core.storage import StorageUnavailable

from .actors import Server
from .callers import event
from .test_reports import lease_until


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


@pytest.fixture
def hanging(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every size request waits until the event is set."""
    answering, size = threading.Event(), server.storage.size
    monkeypatch.setattr(file_checks, "SECONDS", 0.2)

    def wait(sha256: str) -> int | None:
        assert answering.wait(30)
        return size(sha256)

    monkeypatch.setattr(server.storage, "size", wait)
    yield answering
    answering.set()


def test_a_store_that_hangs_delays_no_lease_and_no_command(
    server: Server, claim: dict[str, Any], hanging: threading.Event
) -> None:
    files = server.worker.store(claim, {"a.safetensors": b"x"})
    checkpoint = event(1, kind="checkpoint", data={"step": 1}, files=files)
    server.ask(claim["job_id"], "pause")
    server.age_lease(claim["job_id"], 100)
    before, started = lease_until(server, claim), time.monotonic()
    reply = server.worker.report(claim, events=[checkpoint])
    assert time.monotonic() - started < 5
    assert (reply["control"], reply["accepted_seq"]) == ("pause", 0)
    assert lease_until(server, claim) > before + 90
    hanging.set()
    assert server.worker.report(claim, events=[checkpoint])["accepted_seq"] == 1


def test_reports_do_not_wait_behind_others_that_hang(
    server: Server,
    claim: dict[str, Any],
    hanging: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = server.worker.store(claim, {"a.safetensors": b"x"})
    checkpoint = event(1, kind="checkpoint", data={"step": 1}, files=files)

    def report(_: int) -> int:
        return int(server.worker.report(claim, events=[checkpoint])["accepted_seq"])

    with ThreadPoolExecutor(file_checks.MAX_RUNNING) as pool:
        assert set(pool.map(report, range(file_checks.MAX_RUNNING))) == {0}
    monkeypatch.setattr(file_checks, "SECONDS", 600.0)  # a report that waited would not end
    assert report(0) == 0
    checks = [thread for thread in threading.enumerate() if thread.name == "file-check"]
    assert len(checks) == file_checks.MAX_RUNNING


def test_a_final_report_renews_the_lease_while_the_store_is_away(
    server: Server, claim: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = {"state": "succeeded", "files": server.worker.store(claim, {"a.txt": b"abc"})}
    server.age_lease(claim["job_id"], 100)
    before = lease_until(server, claim)

    def away(sha256: str) -> int:
        raise StorageUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(server.storage, "size", away)
        reply = server.worker.report_reply(claim, outcome=outcome)
    assert reply.status_code == 503
    assert lease_until(server, claim) > before + 90, "or the finished job would be trained again"
    server.worker.report(claim, outcome=outcome)
    assert server.job(claim["job_id"])["state"] == "succeeded"
    assert server.worker.report_reply(claim, outcome=outcome).is_success, "a repetition"


def test_a_report_with_many_files_is_accepted_when_it_is_repeated(
    server: Server, claim: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = server.storage.size
    files = server.worker.store(claim, {f"{name}.txt": name.encode() for name in "abcdef"})
    monkeypatch.setattr(file_checks, "SECONDS", 0.2)

    def slow(sha256: str) -> int | None:
        time.sleep(0.1)
        return size(sha256)

    monkeypatch.setattr(server.storage, "size", slow)
    outcome = {"state": "succeeded", "files": files}
    assert server.worker.report_reply(claim, outcome=outcome).status_code == 503
    time.sleep(1)
    assert server.worker.report_reply(claim, outcome=outcome).is_success


def test_contents_that_workers_ask_for_are_sent_in_the_bulk_plane(server: Server) -> None:
    """A store that hangs must not take the threads of heartbeats."""
    from tunesmith_server.api import internal

    routes = {route.endpoint.__name__: route.endpoint for route in internal.router.routes}  # type: ignore[attr-defined]  # all are API routes
    for name in ("is_stored", "resume_file", "base_file", "file_content"):
        assert getattr(routes[name].__wrapped__, "_is_bulk", False), name
