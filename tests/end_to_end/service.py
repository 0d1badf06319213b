"""Real `tunesmith serve` for tests. Tests start it, send requests, break it and stop it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

import tunesmith

T = TypeVar("T")

QUICK = {
    "TUNESMITH_LEASE_SECONDS": "4",
    "TUNESMITH_JANITOR_SECONDS": "0.5",
    "TUNESMITH_RETRY_SECONDS": "0.5",
}
"""Lease and retry times that are short enough for a test."""


class Service:
    """One service: its process tree and its data directory."""

    def __init__(self, data_dir: Path, model_dir: Path, **env: str) -> None:
        self.data_dir = data_dir
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TUNESMITH_")},
            "TUNESMITH_MODEL_DIRS": str(model_dir),
            "TUNESMITH_DEVICE_USE": str(data_dir.parent / "devices"),
            "OMP_NUM_THREADS": "1",
            **env,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self._clients: list[tunesmith.Client] = []

    def start(self, seconds: float = 120) -> Service:
        """Start the service and wait up to `seconds` until it is ready."""
        self.data_dir.parent.mkdir(exist_ok=True)
        log = (self.data_dir.parent / "serve.log").open("a")
        port = free_port()
        self._process = process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tunesmith_server", "serve"),
                *("--data-dir", str(self.data_dir), "--port", str(port)),
            ],
            env=self._env,
            stdout=log,
            stderr=log,
        )
        log.close()
        self.url = f"http://127.0.0.1:{port}/v1"
        try:
            until(lambda: self.ready() or process.poll() is not None, seconds)
            assert process.poll() is None, "it has ended"
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"serve did not get ready: {self.logs()}") from error
        return self

    def ready(self) -> bool:
        try:
            return get(self.url.removesuffix("v1") + "readyz").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def api_key(self) -> str:
        return (self.data_dir / "api-key").read_text().strip()

    def client(self) -> tunesmith.Client:
        """Return a client that is closed together with the service."""
        self._clients.append(tunesmith.Client(base_url=self.url, api_key=self.api_key))
        return self._clients[-1]

    def stop(self) -> float:
        """Stop the service with Ctrl-C. Return the seconds it took."""
        assert self._process is not None
        began = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=40)
        self._process = None
        return time.monotonic() - began

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self._process is not None and self._process.poll() is None:
            self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def processes(self, *needles: str) -> list[int]:
        """Return the pids of this service's processes whose command line contains all needles,
        oldest first."""
        found = []
        for pid in descendants(self.pid):
            command = command_line(pid)
            if all(needle in command for needle in needles):
                found.append(pid)
        return found

    def worker_main(self) -> int:
        """Return the training worker's main process. Its pool child has the same command line."""
        return self.processes("worker --queue train")[0]

    def worker_env(self) -> dict[str, str]:
        """Return the training worker's environment, for starting another worker of this service."""
        pairs = Path(f"/proc/{self.worker_main()}/environ").read_bytes().decode().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def worker_child(self) -> int:
        return self.processes("worker --queue train")[1]

    def trainers(self) -> list[int]:
        """Return the trainers that have a run; warm trainers have none."""
        return [pid for pid in self.processes("tunesmith_worker.trainer ") if has_run(pid)]

    def warm_trainers(self) -> list[int]:
        return [pid for pid in self.processes("tunesmith_worker.trainer ") if not has_run(pid)]

    def logs(self) -> str:
        files = [self.data_dir.parent / "serve.log", *self.data_dir.glob("logs/*.log")]
        return "\n".join(f"== {file.name}\n{file.read_text()[-2000:]}" for file in files)

    def internal(self) -> httpx.Client:
        """Return a client of the API that workers use."""
        token = (self.data_dir / "worker-token").read_text().strip()
        return httpx.Client(
            base_url=self.url.removesuffix("/v1") + "/internal",
            headers={"authorization": f"Bearer {token}"},
        )


def get(url: str, **headers: str) -> httpx.Response:
    """GET without TLS. By default, each call reads all certificates: 18 ms of CPU per poll."""
    return httpx.get(url, headers=headers, verify=False, trust_env=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def descendants(root: int) -> list[int]:
    """Return the pids of all descendants of `root`, in order of their start."""
    parents: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
            started[int(entry.name)] = int(stat[19])
    found, queue = [], [root]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    # Not in order of pids, because they start again at a small number. A child has a larger pid
    # than its parent if both started within a tick of 10 ms.
    return sorted(found, key=lambda pid: (started[pid], pid))


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def has_run(pid: int) -> bool:
    """Return True if a trainer has a run; it then works in the run directory."""
    try:
        return "runs" in Path(f"/proc/{pid}/cwd").readlink().parts
    except OSError:
        return False


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(ask: Callable[[], T], seconds: float = 60.0) -> T:
    """Return the first true answer. Raise AssertionError if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.1)  # an answer costs several ms of CPU on both sides
    raise AssertionError(f"not within {seconds} s")


def write_rows(path: Path, count: int = 64) -> Path:
    """A small question/answer data set."""
    rows = [
        {"question": f"How much is {i} plus two?", "answer": f"{i} plus two is {i + 2}."}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ENDLESS: dict[str, Any] = {"max_steps": 100_000, "per_device_train_batch_size": 2, "lora": {"r": 4}}
"""Recipe that trains until it is stopped and sends one event per step. A job with fewer steps can
end on a busy machine before a test interrupts it."""
SHORT: dict[str, Any] = ENDLESS | {"max_steps": 12}
