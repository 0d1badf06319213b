"""Inference process without a model, which keeps to the contract of the real one.

The last message chooses the behaviour: `slow` sends a word every 50 ms without end, `fail` breaks
off with an error event, `full` is refused with 429, `bad` with 400, `late` waits 10 s, `die` kills
the process in mid-answer, `who` streams the name of the model; everything else is repeated word by
word. `GET /told` returns what the process was told.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import log
from threading import Lock
from typing import Any
from urllib.parse import unquote

TOLD: dict[str, Any] = {
    "requests": [],
    "models": [],
    "forgotten": [],
    "cancelled": 0,
    "streaming": 0,
}
MODELS: dict[str, Any] = {}
FILES: set[str] = set()
LOCK = Lock()
STREAM_SECONDS = 60
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        if self.path == "/health":
            waiting = os.environ.get("FAKE_WAITING")
            status = "waiting" if waiting else "ready"
            health = {"server": "tunesmith-inference", "status": status}
            self.reply(200, health | {"waiting_for": waiting, "models": [*MODELS]})
        elif self.allowed():
            self.reply(200, TOLD)

    def do_PUT(self) -> None:
        content, expected = self.content(), self.headers["x-sha256"]
        if not self.allowed():
            return
        if hashlib.sha256(content).hexdigest() != expected:
            self.refuse(422, "wrong_hash", "the sha256 differs")
            return
        FILES.add(expected)
        self.reply(200, {})

    def do_DELETE(self) -> None:
        if self.allowed():
            name = unquote(self.path.removeprefix("/models/"))
            TOLD["forgotten"] += [name] if MODELS.pop(name, None) else []
            self.reply(200, {})

    def do_POST(self) -> None:
        body = json.loads(self.content())
        if not self.allowed():
            return
        if self.path == "/models":
            self.register(body)
        elif body["model"] not in MODELS:
            self.refuse(404, "model_not_loaded", "no such model")
        else:
            TOLD["requests"].append(body)
            self.generate(body)

    def register(self, body: dict[str, Any]) -> None:
        missing = [file["name"] for file in body["files"] if file["sha256"] not in FILES]
        if missing:
            self.reply(409, {"missing": missing})
            return
        MODELS[body["id"]] = body
        TOLD["models"].append(body)
        self.reply(200, {"id": body["id"]})

    def generate(self, body: dict[str, Any]) -> None:
        chat = self.path == "/v1/chat/completions"
        text = body["messages"][-1]["content"] if chat else str(body["prompt"])
        if text == "full":
            self.refuse(429, "rate_limit_exceeded", "the queue is full", {"retry-after": "7"})
        elif text == "bad":
            self.refuse(400, "invalid_request", "stop: too many", param="stop")
        elif body.get("stream"):
            self.stream(body, text, chat)
        else:
            if text == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if text == "late":
                time.sleep(10)
            self.reply(200, document(body, text, chat), {"x-tunesmith-engine": "native"})

    def stream(self, body: dict[str, Any], text: str, chat: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-tunesmith-engine", "transformers")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with LOCK:
            TOLD["streaming"] += 1
        try:
            self.send_words(body, text, chat)
        except OSError:
            with LOCK:
                TOLD["cancelled"] += 1
        finally:
            with LOCK:
                TOLD["streaming"] -= 1

    def send_words(self, body: dict[str, Any], text: str, chat: bool) -> None:
        words = (body["model"] if text == "who" else text).split(" ")
        if text in ("slow", "die"):
            until = time.monotonic() + STREAM_SECONDS
            while time.monotonic() < until:
                self.event(chunk(body, "word ", chat))
                time.sleep(0.05)
                if text == "die":
                    self.chunked(b'data: {"id": "half an ev')
                    os.kill(os.getpid(), signal.SIGKILL)
        for word in words:
            self.event(chunk(body, word, chat))
            if text.startswith("fail"):
                self.event({"error": {"message": "no memory", "type": "server_error",
                                      "code": "out_of_memory", "param": None}})  # fmt: skip
                self.chunked(b"")
                return
        self.event(chunk(body, None, chat))
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event(chunk(body, "", chat) | {"choices": [], "usage": USAGE})
        self.chunked(b"data: [DONE]\n\n")
        self.chunked(b"")

    def event(self, document: dict[str, Any]) -> None:
        self.chunked(f"data: {json.dumps(document)}\n\n".encode())

    def chunked(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def allowed(self) -> bool:
        expected = f"Bearer {os.environ.get('TUNESMITH_INFERENCE_TOKEN', '')}"
        if self.headers.get("authorization") == expected:
            return True
        self.refuse(401, "invalid_api_key", "wrong token")
        return False

    def refuse(
        self,
        status: int,
        code: str,
        message: str,
        headers: dict[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        error = {"message": message, "type": "t", "code": code, "param": param}
        self.reply(status, {"error": error}, headers)

    def reply(
        self, status: int, document: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def document(body: dict[str, Any], text: str, chat: bool) -> dict[str, Any]:
    """Answer that is not streamed."""
    head = {"id": "cmpl-1", "created": 1, "model": body["model"], "usage": USAGE}
    choices: list[dict[str, Any]] = []
    for index in range(body.get("n", 1)):
        choice: dict[str, Any] = {"index": index, "finish_reason": "stop", "logprobs": None}
        if chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choices.append(choice)
    return {**head, "object": "chat.completion" if chat else "text_completion", "choices": choices}


def chunk(body: dict[str, Any], word: str | None, chat: bool) -> dict[str, Any]:
    """Event with one word; the last one (None) has the finish reason."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": None if word is not None else "stop"}
    if chat:
        choice["delta"] = {} if word is None else {"role": "assistant", "content": f"{word} "}
        if body.get("logprobs") and word is not None:
            choice["logprobs"] = {"content": [token(f"{word} ")]}
    else:
        choice["text"] = f"{word} " if word is not None else ""
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {
        "id": "cmpl-1", "object": kind, "created": 1, "model": body["model"], "choices": [choice],
    }  # fmt: skip


def token(text: str) -> dict[str, Any]:
    """Log-probs of a token with one alternative: 80 % and 10 %."""
    alternatives = [{"token": text, "logprob": log(0.8)}, {"token": "other", "logprob": log(0.1)}]
    return {"token": text, "logprob": log(0.8), "top_logprobs": alternatives}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    if problem := os.environ.get("FAKE_PROBLEM"):
        sys.exit(problem)
    server = Server(("127.0.0.1", 0), Handler)
    sys.stdout.write(json.dumps({"listening": f"http://127.0.0.1:{server.server_port}"}) + "\n")
    sys.stdout.flush()
    server.serve_forever()
