"""Many chat requests: workers never wait for them, and beyond a limit they are refused."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tunesmith_server.core.settings import Settings
from tunesmith_server.inference import process, service

from . import fake_inference
from .actors import FakeWakeUps, serving
from .live import listening
from .test_planes import assert_served

STREAMS = 60
BODY = json.dumps(
    {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "slow"}],
        "stream": True,
    }
)


@pytest.fixture(autouse=True)
def _fake_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-S", fake_inference.__file__))


def test_streams_that_nobody_reads_delay_no_heartbeat(
    settings: Settings, wake_ups: FakeWakeUps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_OPEN", STREAMS)
    with serving(settings.model_copy(update={"inference_child": True}), wake_ups) as server:
        server.create_job(server.good_file())
        claim = server.worker.claim()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            f"authorization: {server.user.headers['authorization']}\r\n"
            f"content-length: {len(BODY)}\r\n\r\n{BODY}"
        )
        with listening(server.app) as url, ExitStack() as stack:
            parts = urlsplit(url)
            for _ in range(STREAMS):
                slow = socket.create_connection((parts.hostname or "", parts.port or 0))
                stack.enter_context(slow).sendall(head.encode())
                stack.callback(slow.close)
                slow.settimeout(20)
                assert slow.recv(12) == b"HTTP/1.1 200"
            assert_served(url, server, claim, 1)

            reply = httpx.post(
                f"{url}/v1/chat/completions", content=BODY, timeout=20,
                headers={**server.user.headers, "content-type": "application/json"},
            )  # fmt: skip
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
            assert reply.json()["error"]["code"] == "rate_limit_exceeded"
