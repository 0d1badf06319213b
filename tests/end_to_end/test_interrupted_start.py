"""Ctrl-C while `tunesmith serve` or `tunesmith worker` starts."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .service import alive, command_line, descendants, until

MOMENTS: dict[str, Callable[[int, Path], object]] = {
    "imports": lambda pid, data: _has_loaded(pid, "_pydantic_core"),
    "migration": lambda pid, data: (data / "tunesmith.db").exists(),
    "children": lambda pid, data: any("api" in command_line(c) for c in descendants(pid)),
}
"""Functions that return true from that moment of the start on."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_during_the_start_of_serve_ends_it_quietly(tmp_path: Path, moment: str) -> None:
    data = tmp_path / "data"
    process = _start("tunesmith_server", "serve", "--data-dir", str(data), "--port", "0")
    until(lambda: MOMENTS[moment](process.pid, data), 20)
    _interrupt(process)


def test_ctrl_c_during_the_start_of_a_worker_ends_it_quietly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    process = _start(
        *("tunesmith_worker", "worker"),
        TUNESMITH_DATA_DIR=str(data),
        TUNESMITH_BROKER_URL="memory://",
        TUNESMITH_WORKER_TOKEN=secrets.token_urlsafe(32),
    )
    until(lambda: _has_loaded(process.pid, "_ssl."), 20)
    _interrupt(process)


def _start(module: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
    ours = {k: v for k, v in os.environ.items() if not k.startswith("TUNESMITH_")}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**ours, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _has_loaded(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


def _interrupt(process: subprocess.Popen[str]) -> None:
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert "Traceback" not in output + errors
    assert "Exception ignored" not in errors
    assert not [pid for pid in children if alive(pid)]
