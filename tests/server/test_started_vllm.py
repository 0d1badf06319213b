"""vLLM that `tunesmith serve` has started, beside our own inference process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunesmith_server.core.settings import Settings
from tunesmith_server.inference import process

from . import fake_inference
from .actors import FakeWakeUps, Server, serving
from .fake_vllm import RANK, fake_vllm
from .test_inference_servers import CHAT, tuned_model

BASE = "tiny-llama"


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def server(
    settings: Settings, wake_ups: FakeWakeUps, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    command = (sys.executable, "-S", fake_inference.__file__)
    monkeypatch.setattr(process, "COMMAND", command)
    (Path(settings.model_dirs) / "other").mkdir()
    (Path(settings.model_dirs) / "other" / "config.json").write_text("{}")
    both = {
        "inference_child": True,
        "inference_vllm_model": BASE,
        "inference_vllm_socket": socket,
    }
    with serving(settings.model_copy(update=both), wake_ups) as running:
        yield running


def engine(server: Server, model: str = BASE, text: str = "a b") -> str:
    """Return the engine that answers."""
    body: dict[str, Any] = CHAT | {"model": model}
    body["messages"] = [{"role": "user", "content": text}]
    reply = server.user.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-tunesmith-engine"])


def test_vllm_answers_for_its_base_model_and_adapters(server: Server, socket: Path) -> None:
    tuned, full = tuned_model(server), tuned_model(server, "full")
    with fake_vllm(BASE, socket) as vllm:
        assert engine(server) == engine(server, tuned) == "vllm"
        assert "adapter_model.safetensors" in vllm.models[tuned]
        assert engine(server, "other") == engine(server, full) == "native"
        server.worker.hello()
        assert server.user.json("/readyz")["inference"]["status"] == "ready"
        assert server.user.json(f"/v1/models/{tuned}")["serving"] == "registered"
        assert server.user.delete(f"/v1/models/{tuned}").status_code == 200
        assert tuned not in vllm.models


def test_our_process_answers_while_vllm_does_not(
    server: Server, socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tuned = tuned_model(server)
    for _ in range(2):
        assert engine(server) == engine(server, tuned) == "native"
    server.worker.hello()
    status = server.user.json("/readyz")["inference"]
    assert status["status"] == "ready"
    assert "vLLM does not answer" in status["waiting_for"]
    for _ in range(2):  # it starts, and starts again without its adapters
        with fake_vllm(BASE, socket):
            assert engine(server) == engine(server, tuned) == "vllm"
        assert engine(server) == engine(server, tuned) == "native"
    lines = [text for text in caplog.messages if "vLLM" in text]
    starts = [line.partition(" for ")[0] for line in lines]
    silent = "vLLM does not answer, so our own inference process answers"
    assert starts == [silent, "vLLM answers requests", silent, "vLLM answers requests", silent]


def test_an_adapter_that_vllm_refuses_is_answered_by_our_process(
    server: Server, socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuned = tuned_model(server)
    with fake_vllm(BASE, socket) as vllm:
        vllm.refuses_adapters = RANK
        for _ in range(3):
            assert engine(server, tuned) == "native"
        loads = [path for path, _ in vllm.calls if path == "/v1/load_lora_adapter"]
        assert len(loads) == 1, "it is not tried again for each request"
        assert engine(server) == "vllm"
        assert engine(server, text="fail") == "native"
    assert "LoRA rank 99" in caplog.text


def test_only_one_of_two_settings_may_name_a_server() -> None:
    with pytest.raises(ValueError, match="set only one"):
        Settings(inference_url="http://h:1", inference_vllm_model="a")


def test_options_with_an_open_quotation_are_refused() -> None:
    with pytest.raises(ValueError, match=r"inference_vllm_options\n.*No closing quotation"):
        Settings(inference_vllm_options="--a 'b")
