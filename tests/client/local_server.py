"""HTTP server in a thread with fixed answers, for tests of the CLI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    key: str | None
    body: bytes


@dataclass
class LocalServer:
    """`answers` maps "GET /v1/models", with or without query, to JSON, bytes or (status, JSON).

    By default, the list of files is empty.
    """

    url: str
    answers: dict[str, Any] = field(default_factory=dict)  # Any: JSON
    seen: list[Seen] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[LocalServer]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            key = self.headers.get("authorization")
            local.seen.append(Seen(self.command, self.path, key, body))
            nothing = (404, {"error": {"message": f"no {self.path}", "type": "t"}})
            answer = local.answers.get(f"{self.command} {urlsplit(self.path).path}", nothing)
            answer = local.answers.get(f"{self.command} {self.path}", answer)
            status, content = answer if isinstance(answer, tuple) else (200, answer)
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(sent)))
            self.send_header("x-request-id", "req-1")
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    local = LocalServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    local.answers["GET /v1/files"] = {"object": "list", "data": [], "has_more": False}
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield local
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
