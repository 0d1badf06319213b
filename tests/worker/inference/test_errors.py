"""Failures of the engine as the client sees them: before and in the middle of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from tests.worker.engine.serving.engines import save_base
from tunesmith_worker.engine.serving.protocol import Output, QueueFull
from tunesmith_worker.engine.serving.scheduler import Scheduler
from tunesmith_worker.inference.app import create_app
from tunesmith_worker.inference.device import Device, choose_device
from tunesmith_worker.inference.settings import InferenceSettings

BODY: dict[str, Any] = {"model": "base", "prompt": "word", "max_tokens": 20, "temperature": 0}
HEADERS = {"authorization": "Bearer token"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    save_base(folder / "base")
    return folder


@pytest.fixture
def settings(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InferenceSettings:
    monkeypatch.setattr("os.nice", lambda by: None)
    monkeypatch.setattr("tunesmith_worker.engine.serving.native.keep_freed_memory", lambda: None)
    values: dict[str, Any] = {
        "inference_token": "token",
        "inference_cache": tmp_path,
        "model_dirs": str(models),
    }
    return InferenceSettings(**values)


@pytest.fixture
def client(settings: InferenceSettings) -> Iterator[TestClient]:
    with TestClient(create_app(settings, choose_device("cpu")), headers=HEADERS) as client:
        client.post("/models", json={"id": "base", "base": "base", "kind": "base", "files": []})
        yield client


def test_an_error_in_mid_stream_is_the_last_event(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = Scheduler.step, []

    def failing(self: Scheduler) -> list[Output]:
        steps.append(1)
        if len(steps) == 5:
            raise RuntimeError("planted")
        return step(self)

    monkeypatch.setattr(Scheduler, "step", failing)
    answer = client.post("/v1/completions", json=BODY | {"stream": True})
    events = [line for line in answer.text.split("\n\n") if line]
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert "planted" in error["message"]
    # The engine goes on after a failed step.
    assert client.post("/v1/completions", json=BODY).status_code == 200


def test_an_error_before_the_first_token_has_a_status(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Scheduler) -> list[Output]:
        raise RuntimeError("planted")

    monkeypatch.setattr(Scheduler, "step", failing)
    for stream in (False, True):
        answer = client.post("/v1/completions", json=BODY | {"stream": stream})
        assert answer.status_code == 500
        assert "planted" in answer.json()["error"]["message"]


def test_a_full_queue_is_429_with_a_time(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, streams: object) -> None:
        raise QueueFull("256 requests wait", retry_after=5)

    monkeypatch.setattr("tunesmith_worker.engine.serving.native.NativeServing.submit", full)
    answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "5"
    assert client.get("/health").json()["running"] == 0


def test_a_model_larger_than_the_free_memory_is_not_loaded(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith_worker.inference.pool.ModelPool._free", lambda self: 1000)
    answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert "1,000 free bytes" in answer.json()["error"]["message"]
    assert client.get("/health").json()["loaded"] == []


def test_chat_takes_no_gpu_of_trainers_unless_allowed(
    settings: InferenceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    waiting = choose_device("auto")
    assert choose_device("cuda") == Device(torch.device("cuda", 0))
    assert choose_device("cpu").waiting_for is None
    with TestClient(create_app(settings, waiting), headers=HEADERS) as client:
        client.post("/models", json={"id": "base", "base": "base", "kind": "base", "files": []})
        assert client.get("/health").json()["status"] == "waiting"
        answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert "TUNESMITH_INFERENCE_DEVICE" in answer.json()["error"]["message"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert str(choose_device("auto").torch) == "cuda:1"
