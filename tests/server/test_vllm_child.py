"""vLLM as a child of `tunesmith serve`: started, watched, restarted and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunesmith_server.core.settings import Settings
from tunesmith_server.inference import guard
from tunesmith_server.inference import vllm_child as module
from tunesmith_server.inference.vllm_child import VLLMChild, vllm_child
from tunesmith_server.services.catalogue.base_models import local_folders

from .fake_vllm import as_package
from .test_children import until

BASE = "tiny-llama"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "models" / BASE
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return Settings(data_dir=tmp_path / "data", model_dirs=str(folder.parent))


@pytest.fixture
def child(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VLLMChild]:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    for name, value in as_package(tmp_path / "installed").items():
        monkeypatch.setenv(name, value)
    settings.prepare()
    settings.inference_vllm_model, settings.inference_vllm_options = BASE, "--dtype float32"
    made = vllm_child(settings, local_folders(settings), tmp_path)
    assert made is not None
    yield made
    made.kill()


def ready(child: VLLMChild) -> bool:
    child.restart_if_ended()
    return child.is_ready


def pid_of(child: VLLMChild) -> int:
    assert child.process is not None
    return child.process.pid


def group(leader: int) -> list[int]:
    """Return the living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(number) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def test_it_serves_until_it_is_stopped(child: VLLMChild, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    child.start()
    until(lambda: ready(child))
    assert f"vLLM answers for {BASE}" in caplog.text
    leader = pid_of(child)
    assert len(group(leader)) == 3  # the guard, vLLM and vLLM's engine
    began = time.monotonic()
    child.stop()
    assert time.monotonic() - began < guard.STOP_SECONDS, "it was killed"
    until(lambda: group(leader) == [])


@pytest.mark.parametrize("hangs", [False, True])
def test_it_is_restarted_at_once_and_leaves_no_process(
    child: VLLMChild, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kill -9, and if it no longer answers."""
    monkeypatch.setattr(module, "UNHEALTHY_SECONDS", 0.1)
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.1)
    child.start()
    until(lambda: ready(child))
    leader = pid_of(child)
    for pid in group(leader) if hangs else [leader]:
        os.kill(pid, signal.SIGSTOP if hangs else signal.SIGKILL)
    until(lambda: ready(child) and pid_of(child) != leader)
    until(lambda: group(leader) == [], 3)
    assert len(group(pid_of(child))) == 3


@pytest.mark.parametrize("started", [False, True])
def test_it_ends_with_a_killed_parent(child: VLLMChild, tmp_path: Path, started: bool) -> None:
    """Also while it starts and ignores SIGTERM."""
    child.env["FAKE_VLLM_SLOW"] = "" if started else "1"
    program = f"import sys, {module.GUARD} as guard; guard.STOP_SECONDS = 1; sys.exit(guard.main())"
    command = [sys.executable, "-P", "-c", program, *child.command[4:]]
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tunesmith_server.children import Child\n"
        f"child = Child(name='c', command={command!r}, env={child.env!r},\n"
        f"    log_file=Path({str(tmp_path / 'c.log')!r}))\n"
        "child.start(); print(child.process.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        leader = int(parent.stdout.readline())
        until(lambda: len(group(leader)) == 3 and module.is_healthy(child.socket) == started)
        parent.kill()
    until(lambda: group(leader) == [])


def test_a_start_that_fails_is_repeated_later(
    child: VLLMChild, caplog: pytest.LogCaptureFixture
) -> None:
    child.env["FAKE_VLLM_PROBLEM"] = "old"
    child.start()
    until(lambda: not ready(child) and child.process is None)
    assert "did not start (its log has no error)" in caplog.text
    caplog.clear()
    child.env["FAKE_VLLM_PROBLEM"] = "(pid=1) ERROR 11-27 ValueError: too little\nRuntimeError: b"
    child.crashes = 0
    child.start()
    until(lambda: not ready(child) and child.process is None)
    for _ in range(3):
        child.restart_if_ended()
    assert child.process is None, "it waits"
    [line] = [text for text in caplog.messages if "did not start" in text]
    assert "did not start (ValueError: too little), so our own" in line
    assert f"answers for {BASE}; the next start is in 10 s" in line


def test_without_vllm_one_line_says_what_answers(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert vllm_child(settings, local_folders(settings), tmp_path) is None
    assert caplog.text == ""
    settings.inference_vllm_model = BASE
    for python in (sys.executable, "/no/such/python"):
        settings.trainer_python = python
        assert vllm_child(settings, local_folders(settings), tmp_path) is None
        assert f"vLLM is not installed for {python}" in caplog.messages[-1]
    settings.inference_vllm_model = "unknown"
    with pytest.raises(ValueError, match="no base model 'unknown'"):
        vllm_child(settings, local_folders(settings), tmp_path)


def test_vllm_gets_no_secret(child: VLLMChild, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNESMITH_WORKER_TOKEN", "TUNESMITH_ROLLOUT_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in module._environment().values()
    assert module._environment()["PATH"] == os.environ["PATH"]
    assert not [name for name in child.env if name.startswith("TUNESMITH_")]


def test_trainers_keep_the_first_gpu(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in as_package(tmp_path / "installed").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    settings.prepare()
    settings.inference_vllm_model = BASE
    child = vllm_child(settings, local_folders(settings), tmp_path)
    assert child is not None
    assert child.env["CUDA_VISIBLE_DEVICES"] == "5,6"
