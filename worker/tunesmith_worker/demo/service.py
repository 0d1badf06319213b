"""The demo's own service: `tunesmith serve` as a child process on a free port. The demo always
stops the service when it ends."""

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
from pathlib import Path

import httpx

import tunesmith

from .files import DemoError

START_SECONDS = 120.0
STOP_SECONDS = 60.0
"""Maximum seconds for `serve` to stop.

`serve` stops its child processes one after another, each within 15 s.
"""
_PR_SET_PDEATHSIG = 1


@contextmanager
def running_service(output: Path, model_dir: Path | None) -> Iterator[tunesmith.Client]:
    """Run a service and yield a client. The subfolders of `model_dir` are its base models."""
    data_dir, log = output / "service", output / "service.log"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith_server", "serve",
             "--data-dir", str(data_dir), "--host", "127.0.0.1", "--port", str(port)],
            env=_environment(model_dir),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only the demo, which stops the service
            preexec_fn=_stop_with_parent,
        )  # fmt: skip
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}/readyz", log)
        api_key = (data_dir / "api-key").read_text(encoding="utf-8").strip()
        with tunesmith.Client(f"http://127.0.0.1:{port}/v1", api_key) as client:
            yield client
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # this also ends the service's children
            process.wait()


def _environment(model_dir: Path | None) -> dict[str, str]:
    """Return the environment without settings for the user's own database, broker or storage."""
    kept = "TUNESMITH_TRAINER_PYTHON"
    env = {k: v for k, v in os.environ.items() if not k.startswith("TUNESMITH_") or k == kept}
    return env if model_dir is None else {**env, "TUNESMITH_MODEL_DIRS": str(model_dir)}


def _stop_with_parent() -> None:
    """On Linux, send SIGTERM to the service when the demo ends, even by `kill -9`."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(httpx.TransportError):  # the port is not open yet
            if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    problem = f"was not ready after {START_SECONDS:.0f} s"
    if process.returncode is not None:
        problem = f"exited with status {process.returncode}"
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
    raise DemoError(f"the service {problem}; the end of {log}:\n{tail}")
