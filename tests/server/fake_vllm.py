"""vLLM's server without a model: what it answers, as far as the API uses it.

As a program, it accepts the arguments of the real server, listens on `--uds`, and has a second
process, as vLLM has. FAKE_VLLM_PROBLEM makes it end before it listens, FAKE_VLLM_SLOW makes it
start slowly and ignore SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import Any

from . import fake_inference

RANK = (
    500,
    "Call to add_lora method failed: Worker failed with error 'LoRA rank 99 is greater than "
    "max_lora_rank 64.', please check the stack trace above for the root cause",
)
"""Status and message of vLLM 0.32 about an adapter with too large a rank."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any  # it has the models

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        models = [
            {"id": name, "parent": "base" if files else None}
            for name, files in self.server.models.items()
        ]
        self.reply(200, {"data": models} if self.path == "/v1/models" else None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        models = self.server.models
        self.server.calls.append((self.path, body))
        if self.path == "/v1/load_lora_adapter":
            self.load(body["lora_name"], Path(body["lora_path"]))
        elif self.path == "/v1/unload_lora_adapter":
            models.pop(body["lora_name"])
            self.reply(200, None)
        elif body["model"] not in models or self.server.refuses:
            message = f"The model `{body['model']}` does not exist."
            self.reply(404, {"error": {"message": message, "type": "NotFoundError", "code": 404}})
        elif body["messages"][-1]["content"] == "fail":
            error = {"message": "no file /srv/models/a", "type": "InternalServerError", "code": 500}
            self.reply(500, {"error": error})
        else:
            self.reply(200, fake_inference.document(body, "from vllm", chat=True))

    def load(self, name: str, path: Path) -> None:
        models = self.server.models
        if name in models:
            problem = f"The lora adapter '{name}' has already been loaded."
            self.reply(400, {"error": {"message": problem, "code": 400}})
            return
        if self.server.refuses_adapters:
            status, problem = self.server.refuses_adapters
            self.reply(status, {"error": {"message": problem, "code": status}})
            return
        models[name] = {file.name for file in path.iterdir()}
        self.reply(200, None)

    def reply(self, status: int, document: object) -> None:
        content = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Closing(Handler):
    """Closes each connection, so that no thread answers after the server has ended."""

    protocol_version = "HTTP/1.0"


class UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def running(server: Any, *models: str) -> Iterator[Any]:
    """Serve base models in a thread. `server`: a server with `Handler`."""
    server.models, server.calls = {name: set() for name in models}, []
    server.refuses, server.refuses_adapters = False, None
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def fake_vllm(base: str, socket: Path | None = None) -> Iterator[Any]:
    """Serve a base model on a Unix socket, or on a free port."""
    if socket is None:
        with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler), base) as server:
            yield server
    else:
        with running(UnixServer(str(socket), _Closing), base) as server:
            yield server
        socket.unlink()


def as_package(folder: Path) -> dict[str, str]:
    """Return the environment in which Python finds this program as vLLM's server."""
    module = folder / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    module.write_text("from tests.server.fake_vllm import main\n\nmain()\n")
    return {"PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--served-model-name", "--uds", "--max-lora-rank"):
        parser.add_argument(name, required=True)
    parser.add_argument("--enable-lora", action="store_true", required=True)
    parser.add_argument("--max-cpu-loras")
    parser.add_argument("--dtype", choices=["float32"])
    options = parser.parse_args()
    if problem := os.environ.get("FAKE_VLLM_PROBLEM"):
        sys.exit(problem)
    code = "import time; time.sleep(600)  # EngineCore"
    engine = subprocess.Popen([sys.executable, "-S", "-c", code])

    def leave(*_: object) -> None:
        engine.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    if os.environ.get("FAKE_VLLM_SLOW"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    server: Any = UnixServer(options.uds, _Closing)
    server.models, server.calls = {options.served_model_name: set()}, []
    server.refuses, server.refuses_adapters = False, None
    server.serve_forever()
