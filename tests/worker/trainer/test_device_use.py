"""A trainer asks chat on its host for memory before it loads the model and before it plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data
from tunesmith_schema import EventKind
from tunesmith_worker.engine.memory.choose import FreeMemory
from tunesmith_worker.rundir.device_use import Announcement, DeviceUse, read_uses
from tunesmith_worker.trainer.auto import memory_plan
from tunesmith_worker.trainer.run import main

FAST = {"max_steps": 1}


class Chat:
    """Confirms each request after a while, as the inference process does."""

    def __init__(self) -> None:
        self.seen: list[DeviceUse] = []
        self._end = threading.Event()

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        thread = threading.Thread(target=self._run, args=(folder,))
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    def _run(self, folder: Path) -> None:
        with Announcement(DeviceUse(kind="chat"), folder) as announced:
            while not self._end.is_set():
                uses = {k: v for k, v in read_uses(folder).items() if v.kind == "trainer"}
                for use in uses.values():
                    if use.stage and use not in self.seen:
                        self.seen.append(use)
                seen = {name: use.stage for name, use in uses.items()}
                announced.update(DeviceUse(kind="chat", seen=seen))
                time.sleep(0.005)


@pytest.fixture
def uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNESMITH_DEVICE_USE", str(tmp_path / "uses"))
    return tmp_path / "uses"


def test_a_trainer_asks_for_unused_memory_and_tells_what_it_takes(
    make_run: MakeRun, uses: Path
) -> None:
    chat = Chat()
    with chat.running(uses):
        assert main(make_run(QUESTIONS, recipe=FAST)) == 0
    assert [use.stage for use in chat.seen] == [1, 1, 2, 2]
    assert not any(use.everything for use in chat.seen)
    asked, loaded, planning, planned = (use.bytes for use in chat.seen)
    assert asked is planning is None
    assert loaded is not None
    assert planned is not None
    assert planned > 100 << 20, "the trainer's whole memory"
    assert read_uses(uses) == {}, "nothing is left at the end"


def test_a_short_plan_asks_for_everything_and_measures_again(
    make_run: MakeRun, uses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat()

    def free(device: torch.device, held: int) -> FreeMemory:
        got_all = any(use.everything for use in chat.seen)
        bytes_ = held + (1 << 34 if got_all else 1 << 20)
        return FreeMemory(free=bytes_, host_free=bytes_, on_gpu=False)

    monkeypatch.setattr(memory_plan, "read_free_memory", free)
    run = make_run(QUESTIONS, recipe=FAST)
    with chat.running(uses):
        assert main(run) == 0
    assert any(use.everything for use in chat.seen)
    plan = (run / "plan.json").read_text()
    assert '"recompute"' not in plan.split('"alternatives"')[0].split("memory_plan")[-1]
    assert not any("Out of memory" in str(data) for data in event_data(run, EventKind.MESSAGE))


def test_without_chat_nobody_waits(make_run: MakeRun, uses: Path) -> None:
    run = make_run(QUESTIONS, recipe=FAST)
    assert main(run) == 0
    phases = {
        str(data["phase"]): float(str(data["seconds"]))
        for data in event_data(run, EventKind.PHASE)
        if "seconds" in data
    }
    assert phases["plan"] < 2.0
