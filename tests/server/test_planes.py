"""Workers, users and bulk transfers do not wait for one another."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tunesmith_server.core import local_store
from tunesmith_server.core.storage import Storage
from tunesmith_server.services.catalogue import model_list
from tunesmith_server.services.data import files, upload_completion
from tunesmith_server.services.training import job_create

from .actors import Server
from .callers import event
from .live import listening

MANY = 60
"""More requests than FastAPI's 40 threads."""
SOON = 8.0
"""Far below the 20 s of a closed gate; the machine may be busy."""


def assert_served(url: str, server: Server, claim: dict[str, Any], seq: int) -> None:
    """A heartbeat, a report, /healthz and /readyz are answered soon."""
    worker = {"headers": server.worker.credential("worker-1"), "timeout": 30}
    report = {
        "worker_id": "worker-1", "attempt": claim["attempt"], "fence": claim["fence"],
        "events": [event(seq)],
    }  # fmt: skip
    hello = {
        "worker_id": "worker-1",
        "queue": "train",
        "host": "h",
        "device": "cpu",
        "version": "1",
    }
    began = time.monotonic()
    for method, path, body in (
        ("GET", "/healthz", None),
        ("POST", f"/internal/jobs/{claim['job_id']}/report", report),
        ("POST", "/internal/workers/hello", hello),
        ("GET", "/readyz", None),
    ):
        reply = httpx.request(method, url + path, json=body, **worker)  # type: ignore[arg-type]  # mixed options
        assert reply.status_code == 200, reply.text
    assert time.monotonic() - began < SOON


class Gate:
    """A slow function: callers wait until `open`."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.waiting = 0

    def wait(self) -> None:
        self.waiting += 1
        self._opened.wait(20)

    def open(self) -> None:
        self._opened.set()

    def until_waiting(self, count: int = 1) -> None:
        deadline = time.monotonic() + 10
        while self.waiting < count and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)  # the others arrive too
        assert self.waiting >= count


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def slow(monkeypatch: pytest.MonkeyPatch, gate: Gate, owner: Any, name: str) -> None:
    function: Callable[..., Any] = getattr(owner, name)

    def wait_first(*args: Any, **options: Any) -> Any:
        gate.wait()
        return function(*args, **options)

    monkeypatch.setattr(owner, name, wait_first)


@pytest.mark.parametrize(
    ("owner", "name", "method", "path", "options"),
    [
        pytest.param(model_list, "list_models", "GET", "/v1/models", {}, id="users"),
        pytest.param(
            files, "create", "POST", "/v1/files",
            {"files": {"file": ("a", b"a")}, "data": {"purpose": "user_data"}}, id="uploads",
        ),
    ],
)  # fmt: skip
def test_workers_do_not_wait_for_slow_requests(
    server: Server,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    method: str,
    path: str,
    options: dict[str, Any],
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    slow(monkeypatch, gate, owner, name)
    with listening(server.app) as url, ThreadPoolExecutor(MANY) as pool:

        def send(_: int) -> int:
            headers = dict(server.user.headers)
            reply = httpx.request(method, url + path, headers=headers, timeout=60, **options)
            return reply.status_code

        replies = [pool.submit(send, number) for number in range(MANY)]
        gate.until_waiting(6)
        assert_served(url, server, claim, 1)
        gate.open()
        assert {reply.result() for reply in replies} == {200}


def test_users_do_not_wait_for_downloads(
    server: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that stops answering in the middle of downloads holds only the bulk plane."""
    file_id = server.upload()
    stream = Storage.stream

    def stalled(self: Storage, *args: Any) -> Iterator[bytes]:
        gate.wait()
        yield from stream(self, *args)

    monkeypatch.setattr(Storage, "stream", stalled)
    headers = dict(server.user.headers)
    with listening(server.app) as url, ThreadPoolExecutor(MANY) as pool:

        def download(_: int) -> int:
            path = f"{url}/v1/files/{file_id}/content"
            return httpx.get(path, headers=headers, timeout=60).status_code

        replies = [pool.submit(download, number) for number in range(MANY)]
        gate.until_waiting(6)
        began = time.monotonic()
        assert httpx.get(f"{url}/v1/files", headers=headers, timeout=30).status_code == 200
        assert time.monotonic() - began < SOON
        gate.open()
        assert {reply.result() for reply in replies} == {200}


def _upload_of_two_parts(server: Server) -> tuple[str, dict[str, Any]]:
    content = b"a" * 1000
    upload = server.user.post(
        "/v1/uploads",
        json={
            "bytes": 2000, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"
        },
    ).json()  # fmt: skip
    part_ids = []
    for letter in (b"a", b"b"):
        reply = server.user.post(
            f"/v1/uploads/{upload['id']}/parts",
            files={"data": ("x", content.replace(b"a", letter))},
        )
        part_ids.append(reply.json()["id"])
    return upload["id"], {"part_ids": part_ids}


@pytest.mark.parametrize("uploads", [1, 6])
def test_many_completes_share_one_assembly_and_delay_nobody(
    server: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch, uploads: int
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    waiting = [_upload_of_two_parts(server) for _ in range(uploads)]
    slow(monkeypatch, gate, upload_completion, "assemble")
    headers = dict(server.user.headers)
    with listening(server.app) as url, ThreadPoolExecutor(MANY) as pool:

        def complete(number: int) -> Any:
            upload_id, body = waiting[number % uploads]
            path = f"{url}/v1/uploads/{upload_id}/complete"
            return httpx.post(path, json=body, headers=headers, timeout=60).json()

        replies = [pool.submit(complete, number) for number in range(MANY)]
        gate.until_waiting(1)
        assert_served(url, server, claim, 1)
        began = time.monotonic()
        assert httpx.get(f"{url}/v1/files", headers=headers, timeout=30).status_code == 200
        assert time.monotonic() - began < SOON
        gate.open()
        done = [reply.result() for reply in replies]
    assert {answer["status"] for answer in done} == {"completed"}
    assert len({answer["file"]["id"] for answer in done}) == uploads
    assert gate.waiting == uploads


def test_a_complete_with_other_parts_waits_and_is_refused(server: Server) -> None:
    upload_id, body = _upload_of_two_parts(server)
    path = f"/v1/uploads/{upload_id}/complete"
    first = server.user.post(path, json=body)
    other = server.user.post(path, json={"part_ids": body["part_ids"][::-1]})
    assert (first.status_code, other.status_code) == (200, 400)


def test_a_client_that_leaves_does_not_stop_the_assembly(
    server: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, body = _upload_of_two_parts(server)
    slow(monkeypatch, gate, upload_completion, "assemble")
    headers = dict(server.user.headers)
    with listening(server.app) as url:
        path = f"{url}/v1/uploads/{upload_id}/complete"
        with pytest.raises(httpx.TimeoutException):
            httpx.post(path, json=body, headers=headers, timeout=1)
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(httpx.post, path, json=body, headers=headers, timeout=30)
            time.sleep(0.5)
            gate.open()
            assert again.result().json()["status"] == "completed"
    assert gate.waiting == 1


def test_large_bodies_are_processed_one_at_a_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most, lock = 0, 0, threading.Lock()
    create = job_create.create

    def counted(*args: Any) -> Any:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.05)
        with lock:
            at_once -= 1
        return create(*args)

    monkeypatch.setattr(job_create, "create", counted)
    body = json.dumps({"model": "tiny-llama", "training_file": server.good_file()})
    headers = {**server.user.headers, "content-type": "application/json"}
    with listening(server.app) as url, ThreadPoolExecutor(12) as pool:

        def send(_: int) -> int:
            path, content = f"{url}/v1/fine_tuning/jobs", body + " " * 100_000
            return httpx.post(path, content=content, headers=headers, timeout=60).status_code

        assert set(pool.map(send, range(12))) == {200}
    assert most == 1


def test_a_large_body_that_arrives_slowly_does_not_keep_others_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith_server.api.large_bodies.SECONDS", 1.0)
    head = (
        "POST /v1/fine_tuning/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: {server.user.headers['authorization']}\r\ncontent-length: 100000\r\n\r\n{{"
    )
    with listening(server.app) as url, contextlib.ExitStack() as stack:
        address = urlsplit(url)
        for _ in range(8):
            slow = socket.create_connection((address.hostname or "", address.port or 0))
            stack.enter_context(slow).sendall(head.encode())
        time.sleep(0.3)
        began = time.monotonic()
        reply = httpx.post(
            f"{url}/v1/fine_tuning/jobs",
            content=json.dumps({"model": "m", "training_file": "f"}) + " " * 100_000,
            headers={**server.user.headers, "content-type": "application/json"},
            timeout=20,
        )
        assert reply.status_code == 400
        assert time.monotonic() - began < 6


def test_two_hundred_downloads_that_nobody_reads_fit_into_memory() -> None:
    """The transport and the response keep three pieces of each."""
    assert 200 * 3 * local_store.READ_PIECE < 60 * 2**20
    assert local_store.READ_PIECE > 64 * 1024, "asyncio's high-water mark"
