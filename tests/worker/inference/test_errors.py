"""Failures of the engine as the client sees them: before and in the middle of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.worker.engine.serving.engines import save_base
from tunesmith_worker.engine.serving.protocol import Output, QueueFull
from tunesmith_worker.engine.serving.scheduler import Scheduler
from tunesmith_worker.inference.app import create_app
from tunesmith_worker.inference.device import choose_device
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
    assert error["code"] == "internal_error"
    # The engine goes on after a failed step.
    assert client.post("/v1/completions", json=BODY).status_code == 200


def test_an_error_before_the_first_token_has_a_status_and_no_host_path(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(self: Scheduler) -> list[Output]:
        raise RuntimeError("planted in /host/path")

    monkeypatch.setattr(Scheduler, "step", failing)
    for stream in (False, True):
        headers = {"x-request-id": f"req-{stream}"}
        answer = client.post("/v1/completions", json=BODY | {"stream": stream}, headers=headers)
        assert answer.status_code == 500
        message = answer.json()["error"]["message"]
        assert f"req-{stream}" in message
        assert "planted" not in message
        assert f"request req-{stream} failed" in caplog.text
    assert "planted in /host/path" in caplog.text


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


def test_a_model_that_cannot_be_loaded_names_no_host_path(
    client: TestClient, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (models / "damaged").mkdir(exist_ok=True)
    (models / "damaged" / "config.json").write_text('{"model_type": "unheard-of"}')
    client.post("/models", json={"id": "damaged", "base": "damaged", "kind": "base", "files": []})
    answer = client.post("/v1/completions", json=BODY | {"model": "damaged"})
    assert answer.status_code == 503
    assert "'damaged' cannot be loaded" in answer.json()["error"]["message"]
    assert str(models) not in answer.text
    assert "unheard-of" in caplog.text


def test_a_strangers_health_check_learns_no_names(client: TestClient) -> None:
    known = client.get("/health").json()
    assert known["models"] == ["base"]
    stranger = client.get("/health", headers={"authorization": "Bearer other"})
    assert stranger.json() == {"server": "tunesmith-inference", "status": "ready"}
