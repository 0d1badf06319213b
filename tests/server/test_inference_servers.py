"""Inference servers at TUNESMITH_INFERENCE_URL: our own process, and one like vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tunesmith_server.core.settings import Settings
from tunesmith_server.inference import service

from . import fake_inference
from .actors import FakeWakeUps, Server, serving
from .fake_vllm import RANK, fake_vllm

TOKEN = "a-token-of-inference-5up3r"
CHAT = {"model": "tiny-llama", "messages": [{"role": "user", "content": "a b"}]}


@pytest.fixture
def vllm() -> Iterator[Any]:
    with fake_vllm("tiny-llama") as server:
        yield server


@pytest.fixture
def beside_vllm(settings: Settings, wake_ups: FakeWakeUps, vllm: Any) -> Iterator[Server]:
    url = f"http://127.0.0.1:{vllm.server_port}"
    with serving(settings.model_copy(update={"inference_url": url}), wake_ups) as running:
        yield running


def forget_registrations(server: Server) -> None:
    own, _ = server.app.state.tunesmith.inference._open_engines
    own._registered.clear()


def tuned_model(server: Server, kind: str = "lora") -> str:
    job_id = server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim(), kind)
    return str(server.job(job_id)["fine_tuned_model"])


def test_adapters_are_loaded_into_vllm(beside_vllm: Server, vllm: Any) -> None:
    user = beside_vllm.user
    assert user.post("/v1/chat/completions", json=CHAT).json()["model"] == "tiny-llama"
    model = tuned_model(beside_vllm)
    for _ in range(2):
        reply = user.post("/v1/chat/completions", json=CHAT | {"model": model})
        assert reply.json()["choices"][0]["message"]["content"] == "from vllm"
    assert "adapter_model.safetensors" in vllm.models[model]
    assert [path for path, _ in vllm.calls].count("/v1/load_lora_adapter") == 1

    vllm.models.pop(model)  # it restarts
    assert user.post("/v1/chat/completions", json=CHAT | {"model": model}).status_code == 200
    forget_registrations(beside_vllm)  # the API restarts
    assert user.post("/v1/chat/completions", json=CHAT | {"model": model}).status_code == 200
    assert "/v1/unload_lora_adapter" in [path for path, _ in vllm.calls]
    beside_vllm.worker.hello()
    assert user.json("/readyz")["inference"]["status"] == "ready"


def test_what_vllm_cannot_load_is_refused(beside_vllm: Server, vllm: Any) -> None:
    model = tuned_model(beside_vllm, "full")
    reply = beside_vllm.user.post("/v1/chat/completions", json=CHAT | {"model": model})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "model_not_usable")
    vllm.models.clear()
    reply = beside_vllm.user.post("/v1/chat/completions", json=CHAT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert "--served-model-name" in reply.json()["error"]["hint"]


FAILED = "Call to add_lora method failed: Worker failed with error '{}', please check the stack"
OTHER_MODULES = (
    "While loading /srv/secret/a, expected target modules in {'q_proj'} but received ['x']. "
    "Please verify that the loaded LoRA module is correct"
)


@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        (RANK, "does not load 'ft:.*': LoRA rank 99 is greater than max_lora_rank 64", "max-lora"),
        (
            (500, FAILED.format("a.token_adapter.b is unsupported LoRA weight")),
            "a.token_adapter.b is unsupported LoRA weight$",
            "load it with PEFT, or leave TUNESMITH_INFERENCE_URL empty",
        ),
        (
            (500, FAILED.format("LoRA is not enabled. Use --enable-lora to enable LoRA.")),
            "cannot load adapters",
            "--enable-lora",
        ),
        (
            (500, FAILED.format(OTHER_MODULES)),
            "': vLLM does not support adapters on one of the modules that this adapter changes$",
            "load it with PEFT",
        ),
        (
            (500, FAILED.format("vLLM does not yet support DoRA. Adapter bias is not supported.")),
            "': vLLM does not yet support DoRA. Adapter bias is not supported.$",
            "load it with PEFT",
        ),
        ((404, "Not Found"), "cannot load adapters", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        (
            (404, "Loading lora a failed: No adapter found for /srv/secret/a"),
            "does not find the files of 'ft:",
            "TUNESMITH_INFERENCE_CACHE",
        ),
    ],
)
def test_an_adapter_that_vllm_does_not_load_is_refused_with_the_reason(
    beside_vllm: Server, vllm: Any, answer: tuple[int, str], message: str, hint: str
) -> None:
    vllm.refuses_adapters = answer
    model = tuned_model(beside_vllm)
    reply = beside_vllm.user.post("/v1/chat/completions", json=CHAT | {"model": model})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "model_not_usable"), error
    assert re.search(message, error["message"])
    assert hint in error["hint"]
    assert "/srv" not in reply.text


@pytest.mark.parametrize("fault", ["[Errno 5] I/O error", "[Errno 95] Operation not supported"])
def test_a_fault_while_an_adapter_is_loaded_is_no_refusal(
    beside_vllm: Server, vllm: Any, fault: str
) -> None:
    vllm.refuses_adapters = (500, FAILED.format(f"{fault}: '/srv/secret/a'"))
    model = tuned_model(beside_vllm)
    reply = beside_vllm.user.post("/v1/chat/completions", json=CHAT | {"model": model})
    assert reply.status_code == 500
    assert "/srv" not in reply.text


def test_an_adapter_on_another_base_model_is_refused(beside_vllm: Server, vllm: Any) -> None:
    """vLLM would load it if the shapes are equal, and the answers would be wrong."""
    model = tuned_model(beside_vllm)
    vllm.models = {"/srv/secret/other": set()}
    reply = beside_vllm.user.post("/v1/chat/completions", json=CHAT | {"model": model})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "model_not_usable"), error
    assert "does not have 'tiny-llama', the base model of" in error["message"]
    assert error["message"].endswith("it has 'other'")
    assert "--served-model-name tiny-llama" in error["hint"]
    assert "/v1/load_lora_adapter" not in [path for path, _ in vllm.calls]


def test_a_model_that_the_server_does_not_keep_is_not_loaded_for_each_request(
    beside_vllm: Server, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tuned_model(beside_vllm)
    vllm.refuses = True
    for _ in range(5):
        reply = beside_vllm.user.post("/v1/chat/completions", json=CHAT | {"model": model})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    paths = [path for path, _ in vllm.calls]
    assert paths.count("/v1/load_lora_adapter") <= 3
    assert paths.count("/v1/chat/completions") == 2
    vllm.refuses = False
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 60)
    reply = beside_vllm.user.post("/v1/chat/completions", json=CHAT | {"model": model})
    assert reply.status_code == 200


@pytest.fixture
def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FORGET_SECONDS", 0.05)


@pytest.mark.usefixtures("forgetting")
def test_a_model_that_was_deleted_with_its_job_is_unloaded(beside_vllm: Server, vllm: Any) -> None:
    user = beside_vllm.user
    model = tuned_model(beside_vllm)
    for name in (model, "tiny-llama"):
        assert user.post("/v1/chat/completions", json=CHAT | {"model": name}).status_code == 200
    [job] = user.json("/v1/fine_tuning/jobs")["data"]
    assert user.delete(f"/v1/fine_tuning/jobs/{job['id']}").status_code == 200
    deadline = time.monotonic() + 10
    while model in vllm.models:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [body for path, body in vllm.calls if "unload" in path] == [{"lora_name": model}]
    folder = beside_vllm.app.state.tunesmith.settings.data_dir / "inference"
    while list(folder.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_failure_of_the_server_shows_no_text_of_its_host(beside_vllm: Server, vllm: Any) -> None:
    body = CHAT | {"messages": [{"role": "user", "content": "fail"}]}
    reply = beside_vllm.user.post("/v1/chat/completions", json=body)
    assert reply.status_code == 500
    assert "/srv" not in reply.text
    assert reply.json()["error"]["request_id"]


def test_its_admin_routes_are_not_exposed(beside_vllm: Server, vllm: Any) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/chat/../load"):
        assert beside_vllm.user.post(path, json=CHAT).status_code == 404
    assert vllm.calls == []


@pytest.fixture
def own_process() -> Iterator[str]:
    """URL of our inference process, started by somebody else."""
    with subprocess.Popen(
        [sys.executable, "-S", fake_inference.__file__],
        env={**os.environ, "TUNESMITH_INFERENCE_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["listening"])
        process.kill()


def test_our_process_at_a_url(settings: Settings, wake_ups: FakeWakeUps, own_process: str) -> None:
    at_url = {"inference_url": own_process, "inference_token": TOKEN}
    checked = Settings(**(settings.model_dump() | at_url))
    with serving(checked, wake_ups) as server:
        model = tuned_model(server)
        reply = server.user.post("/v1/chat/completions", json=CHAT | {"model": model})
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-tunesmith-engine"] == "native"


def test_a_wrong_token_and_a_wrong_url_are_named(
    settings: Settings, wake_ups: FakeWakeUps, own_process: str
) -> None:
    for url, remedy in (
        (own_process, "TUNESMITH_INFERENCE_TOKEN"),
        ("http://127.0.0.1:9", "TUNESMITH_INFERENCE_URL"),
    ):
        with serving(settings.model_copy(update={"inference_url": url}), wake_ups) as server:
            reply = server.user.post("/v1/chat/completions", json=CHAT)
            assert reply.status_code == 503
            assert remedy in reply.json()["error"]["hint"]
            server.worker.hello(f"worker-{remedy}")
            assert server.user.json("/readyz")["inference"]["status"] in ("ready", "unreachable")


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "ftp://x", "http://"])
def test_a_setting_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be an http or https URL"):
        Settings(inference_url=url)


def test_v1_at_the_end_of_the_url_is_accepted() -> None:
    assert Settings(inference_url="http://h:1/v1/").inference_url == "http://h:1"


class DyingProcess:
    """An inference process whose socket closes before the process ends."""

    url = "http://inference.test"

    def __init__(self) -> None:
        self.running = True

    async def ensure(self) -> tuple[str, str]:
        return self.url, TOKEN

    async def noticed_end(self) -> None:
        self.running = False


def test_a_broken_stream_waits_for_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next request reaches a process that is about to end."""
    from tunesmith_server.inference import native

    async def breaking() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise httpx.ReadError("connection reset")

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=breaking())

    def client(url: str, _: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, transport=httpx.MockTransport(answer))

    process: Any = DyingProcess()
    storage: Any = None  # no model has files here
    monkeypatch.setattr(native, "new_client", client)

    async def read() -> None:
        engine = native.NativeEngine(storage, process=process)
        response = await engine.send("/chat/completions", b"{}", "req-1")
        async for _ in response.aiter_bytes():
            assert process.running

    with pytest.raises(httpx.ReadError):
        asyncio.run(read())
    assert not process.running
