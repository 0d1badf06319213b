"""Files with which trainers, workers and chat tell each other what they use."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tunesmith_worker.rundir import device_use
from tunesmith_worker.rundir.device_use import Announcement, DeviceUse, TrainerUse, read_uses

HOLD = """
import pathlib, sys, time
from tunesmith_worker.rundir.device_use import Announcement, DeviceUse
held = Announcement(DeviceUse(kind="worker", gpu="g"), pathlib.Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_process_uses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        [use] = read_uses(tmp_path).values()
        assert (use.kind, use.gpu, use.pid) == ("worker", "g", process.pid)
        process.kill()
        process.wait()
    assert read_uses(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_waits_until_chat_has_freed_its_memory(tmp_path: Path) -> None:
    with Announcement(DeviceUse(kind="chat"), tmp_path) as chat, TrainerUse(tmp_path) as trainer:
        trainer.begin(None)
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(trainer.make_room()))
        thread.start()
        time.sleep(0.1)
        assert answers == []
        [(name, asked)] = [one for one in read_uses(tmp_path).items() if one[1].kind == "trainer"]
        assert (asked.stage, asked.bytes) == (1, None)
        chat.update(DeviceUse(kind="chat", seen={name: 1}))
        thread.join(5)
        assert answers == [True]
        trainer.settle(123)
        assert read_uses(tmp_path)[name].bytes == 123
    assert read_uses(tmp_path) == {}


def test_nobody_waits_without_chat_on_this_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    with TrainerUse(tmp_path) as trainer, Announcement(DeviceUse(kind="chat", gpu="g"), tmp_path):
        assert not trainer.make_room(), "nothing is announced yet"
        trainer.begin(None)
        assert not trainer.make_room()
        assert not trainer.make_room(everything=True)
    assert time.monotonic() - started < 1.0
    monkeypatch.setattr(device_use, "IDLE_SECONDS", 0.2)
    with TrainerUse(tmp_path) as trainer, Announcement(DeviceUse(kind="chat"), tmp_path):
        trainer.begin(None)
        assert not trainer.make_room(), "a stopped chat delays training shortly"


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    with Announcement(DeviceUse(kind="worker", gpu="g"), tmp_path):
        assert len(read_uses(tmp_path)) == 1
        tmp_path.chmod(0o777)
        assert read_uses(tmp_path) == {}, "anybody may have written it"
    with Announcement(DeviceUse(kind="worker", gpu="g"), tmp_path):
        assert list(tmp_path.iterdir()) == []
