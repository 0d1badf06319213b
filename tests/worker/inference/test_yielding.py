"""Chat gives memory and GPUs to training jobs."""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from starlette.testclient import TestClient

from tests.worker.engine.serving.engines import save_adapters, save_base
from tunesmith_worker.engine.serving.base import loading_bytes
from tunesmith_worker.engine.serving.protocol import Output
from tunesmith_worker.engine.serving.scheduler import Scheduler
from tunesmith_worker.inference import budget, pool
from tunesmith_worker.inference.app import create_app
from tunesmith_worker.inference.device import Device, choose_device
from tunesmith_worker.inference.pool import ModelPool
from tunesmith_worker.inference.settings import InferenceSettings
from tunesmith_worker.inference.yielding import Yielding
from tunesmith_worker.rundir.device_use import Announcement, DeviceUse, TrainerUse, read_uses

BODY: dict[str, Any] = {"prompt": "word", "max_tokens": 2, "temperature": 0}
HEADERS = {"authorization": "Bearer token"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yielding")
    for name in ("one", "two", "three"):
        save_base(folder / name)
    return folder


@pytest.fixture
def uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNESMITH_DEVICE_USE", str(tmp_path / "uses"))
    return tmp_path / "uses"


@pytest.fixture
def settings(
    models: Path, tmp_path: Path, uses: Path, monkeypatch: pytest.MonkeyPatch
) -> InferenceSettings:
    monkeypatch.setattr("os.nice", lambda by: None)
    monkeypatch.setattr("tunesmith_worker.engine.serving.native.keep_freed_memory", lambda: None)
    values: dict[str, Any] = {
        "inference_token": "token",
        "inference_cache": tmp_path / "cache",
        "inference_device": "cpu",
        "model_dirs": str(models),
    }
    return InferenceSettings(**values)


@pytest.fixture
def client(settings: InferenceSettings) -> Iterator[TestClient]:
    with TestClient(create_app(settings, choose_device("cpu")), headers=HEADERS) as client:
        for name in ("one", "two", "three"):
            client.post("/models", json={"id": name, "base": name, "kind": "base", "files": []})
        yield client


def ask(client: TestClient, model: str, **more: Any) -> int:
    status: int = client.post("/v1/completions", json=BODY | {"model": model} | more).status_code
    return status


def loaded(client: TestClient) -> list[str]:
    names: list[str] = client.get("/health").json()["loaded"]
    return names


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_that_plans_its_memory_gets_that_of_idle_models(
    client: TestClient, uses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(client, "one") == 200
    with TrainerUse(uses) as trainer:
        trainer.begin(None)
        assert trainer.make_room()
        health = client.get("/health").json()
        assert health["loaded"] == []
        assert "measures the free memory" in health["waiting_for"]
        # A new request waits, and then says what for.
        monkeypatch.setattr(pool, "PLANNING_SECONDS", 0.1)
        answer = client.post("/v1/completions", json=BODY | {"model": "one"})
        assert answer.status_code == 503
        assert "a training job measures the free memory" in answer.json()["error"]["message"]
        monkeypatch.setattr(pool, "PLANNING_SECONDS", 30.0)
        statuses: list[int] = []
        waiting = threading.Thread(target=lambda: statuses.append(ask(client, "one")))
        waiting.start()
        time.sleep(0.2)
        assert statuses == []
        trainer.settle(1)
        waiting.join(20)
        assert statuses == [200]


def test_running_answers_keep_their_model_until_the_job_needs_everything(
    client: TestClient, uses: Path
) -> None:
    bodies: list[str] = []

    def stream() -> None:
        body = BODY | {"model": "one", "max_tokens": 400, "n": 4, "stream": True}
        bodies.append(client.post("/v1/completions", json=body).text)

    answering = threading.Thread(target=stream)
    answering.start()
    until(lambda: client.get("/health").json()["running"] > 0)
    with TrainerUse(uses) as trainer:
        trainer.begin(None)
        assert trainer.make_room()
        assert loaded(client) == ["one"]
        assert trainer.make_room(everything=True)
        assert loaded(client) == []
        answering.join(10)
        assert "a training job needs its memory" in bodies[0]
        trainer.settle(1)
        assert ask(client, "one") == 200


@pytest.mark.timing
def test_chat_takes_half_of_the_time_while_a_job_trains_on_the_cpu(
    client: TestClient, uses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = Scheduler.step, []

    def timed(self: Scheduler) -> list[Output]:
        time.sleep(0.02)
        outputs = step(self)
        steps.append(time.monotonic())
        return outputs

    monkeypatch.setattr(Scheduler, "step", timed)

    def seconds_per_step() -> float:
        steps.clear()
        assert ask(client, "one", max_tokens=12) == 200
        return statistics.median(b - a for a, b in pairwise(steps))

    assert seconds_per_step() < 0.035
    with TrainerUse(uses) as trainer:
        trainer.begin(None)
        trainer.make_room()
        trainer.settle(1)
        assert seconds_per_step() > 0.04
    until(lambda: not any(use.seen for use in read_uses(uses).values()))
    assert seconds_per_step() < 0.035


def test_what_a_job_will_take_is_not_free(
    client: TestClient, uses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "host_free", lambda: 1 << 30)
    trainer = Announcement(DeviceUse(kind="trainer", stage=1, bytes=0), uses)
    with trainer:
        own = psutil.Process().memory_info().rss
        trainer.update(DeviceUse(kind="trainer", stage=1, bytes=own + (4 << 30)))
        until(lambda: any(use.seen for use in read_uses(uses).values()))
        answer = client.post("/v1/completions", json=BODY | {"model": "one"})
        assert answer.status_code == 503
        assert "may be used for chat" in answer.json()["error"]["message"]
    until(lambda: not any(use.seen for use in read_uses(uses).values()))
    assert ask(client, "one") == 200


def test_the_model_that_was_unused_for_longest_makes_room(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "one"):
        assert ask(client, name) == 200
    monkeypatch.setattr(ModelPool, "_free", lambda self: 1000 if len(self.engines) > 1 else 1 << 30)
    monkeypatch.setattr(pool, "loading_bytes", lambda *_: 1 << 20)
    assert ask(client, "three") == 200
    assert loaded(client) == ["one", "three"]


def test_adapters_and_hub_models_count_in_the_budget(
    client: TestClient, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_adapters(models / "one", tmp_path / "adapters", 1)
    files = []
    for path in (tmp_path / "adapters" / "adapter-0").iterdir():
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        files.append({"name": path.name, "sha256": sha256})
        headers = {"x-sha256": sha256}
        client.put(f"/models/ft/files/{path.name}", content=path.read_bytes(), headers=headers)
    body = {"id": "ft", "base": "one", "kind": "adapter", "files": files}
    assert client.post("/models", json=body).status_code == 200
    assert ask(client, "one") == 200
    monkeypatch.setattr(ModelPool, "_free", lambda self: 1000)
    answer = client.post("/v1/completions", json=BODY | {"model": "ft"})
    assert answer.status_code == 503
    assert "adapter 'ft' needs" in answer.json()["error"]["message"]

    one = models / "one"
    needed = loading_bytes("one", str(one), torch.device("cpu"))
    monkeypatch.setattr("pathlib.Path.is_dir", lambda self: False)
    from_config = loading_bytes("one", str(one), torch.device("cpu"))
    assert from_config == pytest.approx(needed, rel=0.05)


def test_freed_memory_returns_to_the_host() -> None:
    """Many small blocks are on the heap, which the allocator keeps otherwise."""
    resident = psutil.Process().memory_info
    blocks = [torch.ones(1 << 10) for _ in range(1 << 15)]
    last, grown = blocks[-1], resident().rss
    del blocks
    budget.release_memory()
    assert len(last) == 1 << 10
    assert grown - resident().rss > 100 << 20


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda i: SimpleNamespace(uuid=f"GPU-{i}")
    )


def test_chat_takes_no_gpu_of_workers_unless_allowed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 1)
    waiting = choose_device("auto")
    assert "TUNESMITH_INFERENCE_DEVICE" in (waiting.waiting_for or "")
    assert choose_device("cuda") == Device(torch.device("cuda", 0), gpu="0")
    assert choose_device("cpu").waiting_for is None
    gpus(monkeypatch, 2)
    assert choose_device("auto").gpu == "1", "a worker that starts later takes the first"
    assert choose_device("auto", {"1"}).gpu == "0"
    assert choose_device("cuda", {"0"}).gpu == "1"
    assert "all 2 GPUs" in (choose_device("auto", {"0", "1"}).waiting_for or "")
    assert choose_device("cuda", {"0", "1"}).waiting_for is None


def test_chat_leaves_a_gpu_when_a_worker_announces_it(
    settings: InferenceSettings, uses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 2)
    monkeypatch.setattr("tunesmith_worker.inference.yielding.held_memory", lambda device: 0)
    monkeypatch.setattr(ModelPool, "_free", lambda self: 0)

    async def follow() -> None:
        models = ModelPool(settings, choose_device("auto"))
        following = asyncio.create_task(Yielding(models, "auto").run())

        async def device(gpu: str | None) -> None:
            async with asyncio.timeout(5):
                while models.device.gpu != gpu:
                    await asyncio.sleep(0.01)

        assert models.device.gpu == "1"
        with Announcement(DeviceUse(kind="worker", gpu="1"), uses):
            await device("0")
            with Announcement(DeviceUse(kind="worker", gpu="0"), uses):
                await device(None)
                assert "reserved for training" in (models.waiting_for or "")
            await device("0")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        models.close()

    asyncio.run(follow())
