"""A running inference process, and a client of its streams, for the chat benchmarks."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

PROMPT = 40
"""Number of tokens in a prompt."""


class Server:
    """A running server with OpenAI's completions API."""

    def __init__(self, url: str, token: str, model: str) -> None:
        self._address, self._token, self._model = urlsplit(url), token, model
        self.arguments = (url, token, model)
        self.process: subprocess.Popen[str] | None = None

    def pause(self, stop: bool) -> None:
        """Stop the server process (SIGSTOP), or let it continue."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)

    async def stream(
        self, prompt: list[int], new: int, count: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Return the times of the events of one streamed completion; the first entry is the time of
        the request. `count` is called for each event."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        body = json.dumps(
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": new,
                "temperature": 1.0,
                "seed": 1,
                "stream": True,
            }
        )
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        times = [time.perf_counter()]
        writer.write((head + body).encode())
        status = await reader.readline()
        if b" 200 " not in status:
            sys.exit(f"the server answered {status!r} {(await reader.read())[-300:]!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                count()
        writer.close()
        return times


def prompts(count: int, length: int) -> list[list[int]]:
    return [[5 + secrets.randbelow(400) for _ in range(length)] for _ in range(count)]


@contextmanager
def our_server(model: Path) -> Iterator[Server]:
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "TUNESMITH_INFERENCE_TOKEN": token,
            "TUNESMITH_INFERENCE_CACHE": cache,
            "TUNESMITH_INFERENCE_DEVICE": "cpu",
            "TUNESMITH_MODEL_DIRS": str(model.parent),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "tunesmith_worker.inference"]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                assert process.stdout is not None
                url = json.loads(process.stdout.readline())["listening"]
                register(url, token, model.name)
                server = Server(url, token, model.name)
                server.process = process
                yield server
            finally:
                process.terminate()


def register(url: str, token: str, name: str) -> None:
    body = json.dumps({"id": name, "base": name, "kind": "base", "files": []}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/models", body, headers)).close()
