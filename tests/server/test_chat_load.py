"""Many chat requests: workers never wait for them, and beyond a limit they are refused."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tunesmith_server.core.settings import Settings
from tunesmith_server.inference import process, service
from tunesmith_server.services import keys

from . import fake_inference
from .actors import FakeWakeUps, Server, serving
from .live import listening
from .test_planes import assert_served
from .test_unfinished_bodies import memory

STREAMS = 60
BODY = json.dumps(
    {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "slow"}],
        "stream": True,
    }
)
LARGE = json.dumps(
    {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "x"}] * 9000
        + [{"role": "user", "content": "slow"}],
        "stream": True,
    }
)


@pytest.fixture(autouse=True)
def _fake_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-S", fake_inference.__file__))


@pytest.fixture
def chatting(settings: Settings, wake_ups: FakeWakeUps) -> Iterator[Server]:
    """Server that starts the fake process on first use."""
    with serving(settings.model_copy(update={"inference_child": True}), wake_ups) as running:
        yield running


def open_stream(stack: ExitStack, url: str, server: Server, body: str = BODY) -> None:
    """Send a request, and read no more than the first bytes of its answer."""
    parts = urlsplit(url)
    client = stack.enter_context(socket.create_connection((parts.hostname or "", parts.port or 0)))
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"authorization: {server.user.headers['authorization']}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    client.sendall((head + body).encode())
    client.settimeout(20)
    assert client.recv(12) == b"HTTP/1.1 200"


def refused(url: str, server: Server, body: str) -> None:
    headers = {**server.user.headers, "content-type": "application/json"}
    reply = httpx.post(f"{url}/v1/chat/completions", content=body, headers=headers, timeout=20)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"


def test_streams_that_nobody_reads_delay_no_heartbeat(
    chatting: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_OPEN", STREAMS)
    chatting.create_job(chatting.good_file())
    claim = chatting.worker.claim()
    with listening(chatting.app) as url, ExitStack() as stack:
        for _ in range(STREAMS):
            open_stream(stack, url, chatting)
        assert_served(url, chatting, claim, 1)
        refused(url, chatting, BODY)


def test_large_requests_cost_little_memory_while_they_wait(
    chatting: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = 20
    monkeypatch.setattr(service, "MOST_OPEN_BYTES", (few + 1) * len(LARGE) - 1)
    with listening(chatting.app) as url, ExitStack() as stack:
        open_stream(stack, url, chatting)
        before = memory()
        for _ in range(few):
            open_stream(stack, url, chatting, LARGE)
        grown = memory() - before
        refused(url, chatting, LARGE)
    assert grown < 5 * few * len(LARGE), f"{grown / 2**20:.0f} MiB"


def test_a_revoked_key_ends_its_chat_requests(
    chatting: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith_server.api.stream.KEY_SECONDS", 0.1)
    other, whole = chatting.new_user("bob"), json.loads(BODY)
    late = {"model": whole["model"], "messages": [{"role": "user", "content": "late"}]}
    with (
        listening(chatting.app) as url,
        httpx.Client(base_url=f"{url}/v1", timeout=8) as http,
        http.stream("POST", "/chat/completions", json=whole, headers=other.headers) as ending,
        http.stream(
            "POST", "/chat/completions", json=whole, headers=chatting.user.headers
        ) as staying,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(http.post, "/chat/completions", json=late, headers=other.headers)
        lines, others_lines = ending.iter_lines(), staying.iter_lines()
        assert "word" in next(lines)
        time.sleep(0.3)
        with chatting.database.write.begin() as session:
            [bob] = [row for row in keys.list_all(session) if row.name == "bob"]
            keys.revoke(session, bob.id)
        last = [line for line in lines if line][-1]
        assert "revoked" in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert waiting.result(8).status_code == 401
        next(others_lines)
        assert any("word" in line for line, _ in zip(others_lines, range(10), strict=False))


def test_one_key_cannot_take_all_slots(chatting: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_OF_KEY", 3)
    other = chatting.new_user("bob").headers
    with listening(chatting.app) as url, httpx.Client(base_url=f"{url}/v1", timeout=20) as client:

        def ask(headers: dict[str, str], **more: object) -> httpx.Response:
            body = json.loads(BODY) | more
            request = client.build_request("POST", "/chat/completions", json=body, headers=headers)
            return client.send(request, stream=True)

        ann = chatting.user.headers
        opened = [ask(ann, n=2), ask(ann)]
        assert [reply.status_code for reply in opened] == [200, 200]
        refused = ask(ann)
        refused.read()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert "this key has 3 completions open" in refused.json()["error"]["message"]
        opened += [ask(other, n=10)]
        assert opened[-1].status_code == 200, "one request may be larger"
        for reply in opened:
            reply.close()
        inference = chatting.app.state.tunesmith.inference
        deadline = time.monotonic() + 10
        while inference._of_key:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        again = ask(ann)
        assert again.status_code == 200
        again.close()
