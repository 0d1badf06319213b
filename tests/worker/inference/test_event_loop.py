"""No request waits for another one's work: nothing blocks the event loop."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.worker.engine.serving.engines import save_adapters, save_base
from tunesmith_worker.engine.serving.protocol import Output
from tunesmith_worker.engine.serving.scheduler import Scheduler
from tunesmith_worker.inference import pool
from tunesmith_worker.inference.app import create_app
from tunesmith_worker.inference.device import choose_device
from tunesmith_worker.inference.settings import InferenceSettings

STEP_SECONDS = 0.6


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("TUNESMITH_DEVICE_USE", str(tmp_path / "uses"))
    monkeypatch.setattr("os.nice", lambda by: None)
    monkeypatch.setattr("tunesmith_worker.engine.serving.native.keep_freed_memory", lambda: None)
    base = save_base(tmp_path / "models" / "base")
    save_adapters(base, tmp_path / "adapters", 2)
    values: dict[str, Any] = {
        "inference_token": "token",
        "inference_cache": tmp_path / "cache",
        "inference_device": "cpu",
        "inference_idle_seconds": 0.4,
        "model_dirs": str(tmp_path / "models"),
    }
    app = create_app(InferenceSettings(**values), choose_device("cpu"))
    with TestClient(app, headers={"authorization": "Bearer token"}) as client:
        client.post("/models", json={"id": "base", "base": "base", "kind": "base", "files": []})
        for number in range(2):
            add_adapter(client, f"ft:{number}", tmp_path / "adapters" / f"adapter-{number}")
        yield client


def add_adapter(client: TestClient, name: str, folder: Path) -> None:
    files = []
    for path in folder.iterdir():
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        files.append({"name": path.name, "sha256": sha256})
        url = f"/models/{name}/files/{path.name}"
        client.put(url, content=path.read_bytes(), headers={"x-sha256": sha256})
    body = {"id": name, "base": "base", "kind": "adapter", "files": files}
    assert client.post("/models", json=body).status_code == 200


def test_other_requests_are_answered_while_a_step_takes_long(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile adapters are exchanged, a long prompt is read and an idle model is unloaded."""
    monkeypatch.setattr(pool, "MAX_ADAPTERS", 1)
    step = Scheduler.step

    def slow(self: Scheduler) -> list[Output]:
        time.sleep(STEP_SECONDS)
        return step(self)

    monkeypatch.setattr(Scheduler, "step", slow)
    statuses: list[int] = []

    def ask(model: str, prompt: str) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": 2}
        statuses.append(client.post("/v1/completions", json=body).status_code)

    requests = [("base", "a"), ("ft:0", "a"), ("ft:1", "a"), ("base", "word " * 200_000)]
    threads = [threading.Thread(target=ask, args=request) for request in requests]
    for thread in threads:
        thread.start()
    longest = 0.0
    deadline = time.monotonic() + 20
    while any(thread.is_alive() for thread in threads) or client.get("/health").json()["loaded"]:
        assert time.monotonic() < deadline
        began = time.monotonic()
        client.get("/health")
        longest = max(longest, time.monotonic() - began)
    assert sorted(statuses) == [200, 200, 200, 400], "the long prompt exceeds the context"
    assert longest < STEP_SECONDS / 2
