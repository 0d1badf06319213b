"""The demo's own service: `serve` as a child on a free port, stopped whatever happens.

Knows nothing of jobs.
"""

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
"""`serve` stops its children one by one, each within 15 s."""
_PR_SET_PDEATHSIG = 1


class ServiceFailed(RuntimeError):
    """The service did not come up; the message has the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Service:
    base_url: str
    api_key: str


@contextmanager
def running_service(data_dir: Path, model_dir: Path | None, log: Path) -> Iterator[Service]:
    """A service that is ready for jobs. Base models are the subfolders of `model_dir`."""
    port = _free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith_server", "serve",
             "--data-dir", str(data_dir), "--host", "127.0.0.1", "--port", str(port)],
            env=_environment(model_dir),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the demo only, which stops it in order
            preexec_fn=_stop_with_parent,
        )  # fmt: skip
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
        yield Service(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key=(data_dir / "api-key").read_text(encoding="utf-8").strip(),
        )
    finally:
        _stop(process)


def _environment(model_dir: Path | None) -> dict[str, str]:
    """Ours, without settings that would lead to a database, broker or storage of somebody's."""
    kept = ("TUNESMITH_TRAINER_PYTHON",)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TUNESMITH_") or k in kept}
    if model_dir is not None:
        env["TUNESMITH_MODEL_DIRS"] = str(model_dir)
    return env


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _stop_with_parent() -> None:
    # The kernel asks it to stop when the demo is gone, kill -9 included (Linux only).
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServiceFailed(f"the service ended at once; its log:\n{_tail(log)}")
        with suppress(httpx.TransportError):  # nobody listens yet
            if httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise ServiceFailed(f"the service was not ready in {START_SECONDS:.0f} s:\n{_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # Its children ask the kernel to end with it.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
