"""The demo's own service: `serve` as a child process on a free port, always stopped at the end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 120.0
STOP_SECONDS = 60.0
"""`serve` stops its children one after another, each within 15 s."""
_PR_SET_PDEATHSIG = 1


class ServiceFailed(RuntimeError):
    """Error of a service that did not start, with the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Service:
    base_url: str
    api_key: str


@contextmanager
def running_service(data_dir: Path, model_dir: Path | None, log: Path) -> Iterator[Service]:
    """Run a service that is ready for jobs. The subfolders of `model_dir` are its base models."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith_server", "serve",
             "--data-dir", str(data_dir), "--host", "127.0.0.1", "--port", str(port)],
            env=_environment(model_dir),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # only the demo gets Ctrl-C, and stops the service in order
            preexec_fn=_stop_with_parent,
        )  # fmt: skip
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
        api_key = (data_dir / "api-key").read_text(encoding="utf-8").strip()
        yield Service(base_url=f"http://127.0.0.1:{port}/v1", api_key=api_key)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children end with it
            process.wait()


def _environment(model_dir: Path | None) -> dict[str, str]:
    """Return the environment without settings for the user's own database, broker or storage."""
    kept = ("TUNESMITH_TRAINER_PYTHON",)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TUNESMITH_") or k in kept}
    return env if model_dir is None else {**env, "TUNESMITH_MODEL_DIRS": str(model_dir)}


def _stop_with_parent() -> None:
    """Request SIGTERM from Linux for the demo's death, `kill -9` included."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    problem = f"was not ready after {START_SECONDS:.0f} s"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            problem = f"exited with status {process.returncode}"
            break
        with suppress(httpx.TransportError):  # the port is not open yet
            if httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
    raise ServiceFailed(f"the service {problem}; the end of {log}:\n{tail}")
