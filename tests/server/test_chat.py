"""Chat and completions over HTTP, with the unmodified `openai` package and a fake inference process
as child of the API."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from tunesmith_server.core.settings import Settings
from tunesmith_server.inference import process
from tunesmith_server.models import DEFAULT_PROJECT

from . import fake_inference
from .actors import FakeWakeUps, Server, serving
from .live import listening

FAKE = (sys.executable, "-S", fake_inference.__file__)
BASE = "tiny-llama"


def said(text: str) -> list[ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]


@pytest.fixture(autouse=True)
def _fake_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", FAKE)


@pytest.fixture
def chatting(settings: Settings, wake_ups: FakeWakeUps) -> Iterator[Server]:
    """Server that starts the fake process on first use."""
    with serving(settings.model_copy(update={"inference_child": True}), wake_ups) as running:
        yield running


@pytest.fixture
def url(chatting: Server) -> Iterator[str]:
    with listening(chatting.app) as url:
        yield url


@pytest.fixture
def client(chatting: Server, url: str) -> Iterator[OpenAI]:
    key = chatting.user.headers["authorization"].removeprefix("Bearer ")
    strict = OpenAI(
        base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=20,
        _strict_response_validation=True,
    )  # fmt: skip
    with strict:
        yield strict


def child(server: Server) -> process.InferenceProcess:
    own, _ = server.app.state.tunesmith.inference._open_engines
    found: process.InferenceProcess = own.engine._process
    return found


def told(server: Server) -> Any:  # Any: JSON
    running = child(server)
    headers = {"authorization": f"Bearer {running._token}"}
    return httpx.get(f"{running.url}/told", headers=headers).json()


def until(what: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def tuned_model(server: Server, kind: str = "lora") -> str:
    job_id = server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim(), kind)
    return str(server.job(job_id)["fine_tuned_model"])


def test_answers_of_a_base_model(client: OpenAI, chatting: Server) -> None:
    answer = client.chat.completions.create(
        model=BASE,
        messages=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "hel"}]},
            {"role": "user", "content": "hello you"},
        ],
        n=2, temperature=0, top_p=0.5, seed=7, stop=["a", "b"], max_completion_tokens=9,
        frequency_penalty=1, presence_penalty=-1, logprobs=True, top_logprobs=3, user="u",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}},
        },
    )  # fmt: skip
    assert [choice.message.content for choice in answer.choices] == ["hello you"] * 2
    assert answer.usage
    assert answer.usage.total_tokens == 5
    assert told(chatting)["requests"] == [
        {
            "model": BASE, "n": 2, "temperature": 0.0, "top_p": 0.5, "seed": 7, "stop": ["a", "b"],
            "max_completion_tokens": 9, "frequency_penalty": 1.0, "presence_penalty": -1.0,
            "logprobs": True, "top_logprobs": 3, "cache_salt": DEFAULT_PROJECT,
            "messages": [
                {"role": "system", "content": "be kind"}, {"role": "user", "content": "hel"},
                {"role": "user", "content": "hello you"},
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}},
            },
        }
    ]  # fmt: skip
    raw = client.chat.completions.with_raw_response.create(model=BASE, messages=said("x"))
    assert raw.headers["x-tunesmith-engine"] == "native"
    assert raw.headers["x-request-id"].startswith("req-")


def test_a_stream_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=BASE, messages=said("one two"), stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
    )  # fmt: skip
    assert stream.response.headers["x-tunesmith-engine"] == "transformers"
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "one two "
    assert [bool(chunk.usage) for chunk in chunks] == [False] * 3 + [True]
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_completions(client: OpenAI, chatting: Server) -> None:
    assert client.completions.create(model=BASE, prompt="a b").choices[0].text == "a b"
    tokens = client.completions.create(model=BASE, prompt=[[1, 2], [3]], echo=True, logprobs=2)
    assert tokens.object == "text_completion"
    request = told(chatting)["requests"][-1]
    assert request == {
        "model": BASE, "prompt": [[1, 2], [3]], "echo": True, "logprobs": 2,
        "cache_salt": DEFAULT_PROJECT,
    }  # fmt: skip
    # The strict client refuses the null that OpenAI sends as finish_reason of a part.
    client._strict_response_validation = False
    parts = list(client.completions.create(model=BASE, prompt="a b", stream=True))
    assert [part.choices[0].finish_reason for part in parts] == [None, None, "stop"]
    assert "".join(part.choices[0].text for part in parts) == "a b "


@pytest.mark.parametrize(("kind", "wire"), [("lora", "adapter"), ("full", "full")])
def test_tuned_models_and_checkpoints(
    client: OpenAI, chatting: Server, kind: str, wire: str
) -> None:
    model = tuned_model(chatting, kind)
    for _ in range(2):
        assert client.chat.completions.create(model=model, messages=said("a")).model == model
    [registered] = told(chatting)["models"]
    assert (registered["id"], registered["base"], registered["kind"]) == (model, BASE, wire)
    assert len(registered["files"]) == 3

    assert client.models.delete(model).deleted
    until(lambda: told(chatting)["forgotten"] == [model])
    with pytest.raises(openai.NotFoundError) as gone:
        client.chat.completions.create(model=model, messages=said("a"))
    assert (gone.value.code, gone.value.param) == ("model_not_found", "model")


def test_the_models_of_a_deleted_job_are_unloaded(client: OpenAI, chatting: Server) -> None:
    model = tuned_model(chatting)
    assert client.chat.completions.create(model=model, messages=said("a")).model == model
    [job] = chatting.user.json("/v1/fine_tuning/jobs")["data"]
    assert chatting.user.delete(f"/v1/fine_tuning/jobs/{job['id']}").status_code == 200
    until(lambda: told(chatting)["forgotten"] == [model])


def test_an_unknown_model_starts_nothing(client: OpenAI, chatting: Server) -> None:
    for name in ("tiny-lama", "ft:x", "org/name", "x" * 500):
        with pytest.raises(openai.NotFoundError, match="no model"):
            client.chat.completions.create(model=name, messages=said("a"))
    assert chatting.app.state.tunesmith.inference._open_engines is None
    ready = chatting.user.get("/readyz")
    assert ready.status_code == 503
    chatting.worker.hello()
    assert chatting.user.json("/readyz")["inference"]["status"] == "not started"
    assert "inference" not in chatting.anonymous.json("/readyz")
    assert chatting.anonymous.post("/v1/completions", json={}).status_code == 401


def test_an_error_in_mid_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(model=BASE, messages=said("fail now"), stream=True)
    with pytest.raises(openai.APIError, match="no memory") as failed:
        list(stream)
    assert failed.value.code == "out_of_memory"


def test_kill_9_of_the_process(client: OpenAI, chatting: Server) -> None:
    """Running streams end with an error event; the next request starts the process again."""
    streams = [
        client.chat.completions.create(model=BASE, messages=said("slow"), stream=True)
        for _ in range(3)
    ]
    for stream in streams:
        assert next(stream).choices
    killed = child(chatting)._process
    assert killed is not None
    os.killpg(killed.pid, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(openai.APIError, match="ended before the answer was complete") as broken:
            list(stream)
        assert broken.value.code == "unavailable"
    assert client.chat.completions.create(model=BASE, messages=said("a")).choices
    assert child(chatting)._process is not killed

    half_an_event = client.chat.completions.create(model=BASE, messages=said("die"), stream=True)
    with pytest.raises(openai.APIError, match="ended before"):
        list(half_an_event)
    with pytest.raises(openai.InternalServerError) as dead:
        client.chat.completions.create(model=BASE, messages=said("die"))
    assert dead.value.status_code == 503
    model = tuned_model(chatting)
    assert client.chat.completions.create(model=model, messages=said("a")).model == model


def test_a_client_that_leaves_cancels_its_request(client: OpenAI, chatting: Server) -> None:
    for _ in range(3):
        stream = client.chat.completions.create(model=BASE, messages=said("slow"), stream=True)
        next(stream)
        stream.close()
    until(lambda: told(chatting)["cancelled"] == 3)
    assert told(chatting)["streaming"] == 0
    until(lambda: chatting.app.state.tunesmith.inference._open == 0)


def test_refusals_are_passed_on(client: OpenAI) -> None:
    with pytest.raises(openai.RateLimitError, match="queue is full") as full:
        client.chat.completions.create(model=BASE, messages=said("full"), stream=True)
    assert full.value.response.headers["retry-after"] == "7"
    assert full.value.code == "rate_limit_exceeded"
    with pytest.raises(openai.BadRequestError, match="too many") as bad:
        client.chat.completions.create(model=BASE, messages=said("bad"))
    assert bad.value.param == "stop"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "not_supported"),
        ({"logit_bias": {"5": 10}}, "logit_bias", "not_supported"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "not_supported"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_request"),
        ({"top_k": 5}, "top_k", "unknown_field"),
        ({"temperature": 2.5}, "temperature", "invalid_request"),
        ({"n": 0}, "n", "invalid_request"),
        ({"stop": ["x"] * 5}, "stop", "invalid_request"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_request"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens", "invalid_request"),
        ({"messages": []}, "messages", "invalid_request"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", "invalid_request"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_request"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_request"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema", "invalid_request",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "a", "schema": {"maximum": float("inf")}}}},
            "response_format.json_schema", "invalid_request",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_would_change_the_answer_is_refused_by_name(
    server: Server, body: dict[str, Any], param: str, code: str
) -> None:
    whole = json.dumps({"model": BASE, "messages": said("a"), **body})
    headers = {"content-type": "application/json"}
    reply = server.user.post("/v1/chat/completions", content=whole, headers=headers)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code), error


def test_without_inference_the_error_names_the_setting(server: Server) -> None:
    reply = server.user.post("/v1/completions", json={"model": BASE, "prompt": "a"})
    assert reply.status_code == 503
    assert "TUNESMITH_INFERENCE_URL" in reply.json()["error"]["hint"]
    server.worker.hello()
    assert server.user.json("/readyz")["inference"]["status"] == "off"


def test_a_process_that_does_not_start_is_named_and_left_alone(
    client: OpenAI, chatting: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROBLEM", "error: no torch here")
    for _ in range(2):
        with pytest.raises(openai.InternalServerError, match="no torch here") as refused:
            client.chat.completions.create(model=BASE, messages=said("a"))
        assert refused.value.status_code == 503
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 10
    log = child(chatting)._log_file.read_text()
    assert log.count("no torch here") == 1, "the second request does not try again"
    chatting.worker.hello()
    status = chatting.user.json("/readyz")["inference"]
    assert "no torch here" in status["waiting_for"]


def test_the_last_words_of_a_crash_stay_in_the_log(
    client: OpenAI, chatting: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROBLEM", "ImportError: /opt/lib/torch.so")
    with pytest.raises(openai.InternalServerError, match="ended with status 1") as refused:
        client.chat.completions.create(model=BASE, messages=said("a"))
    assert "/opt" not in str(refused.value)


def test_readyz_says_what_inference_waits_for(
    client: OpenAI, chatting: Server, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("FAKE_WAITING", "GPU 0, which job ftjob-1 holds")
    chatting.worker.hello()
    client.chat.completions.create(model=BASE, messages=said("a"))
    status = httpx.get(f"{url}/readyz", headers=chatting.user.headers).json()["inference"]
    assert status == {"status": "waiting", "waiting_for": "GPU 0, which job ftjob-1 holds"}


def test_the_process_ends_with_the_api(chatting: Server, tmp_path: Path) -> None:
    key = chatting.user.headers
    with listening(chatting.app) as url:
        body = {"model": BASE, "prompt": "a"}
        assert httpx.post(f"{url}/v1/completions", json=body, headers=key).status_code == 200
        running = child(chatting)._process
        assert running is not None
    assert running.poll() is not None
