"""Client of a vLLM server that is missing, wrong, or used by another job. The server is a fake."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.worker.engine.patches.models import make_model, with_lora
from tunesmith_worker.engine.rollout import (
    EngineLost,
    EngineUnavailable,
    Interrupted,
    Request,
    RolloutPlan,
)
from tunesmith_worker.engine.rollout.fold import checksum
from tunesmith_worker.engine.rollout.protocol import RolloutError, UnsupportedModel
from tunesmith_worker.engine.rollout.vllm import VLLMEngine
from tunesmith_worker.engine.rollout.vllm import engine as module
from tunesmith_worker.engine.rollout.vllm.weights import PolicyWeights
from tunesmith_worker.engine.rollout.vllm.wire import OTHER_WEIGHTS

Untyped = Any  # Any: transformers is not typed

PLAN = RolloutPlan(weights="merged", max_rows=4, row_tokens=12)
REQUEST = Request(prompt_ids=(3, 4, 5), max_tokens=2, seed=1)


class Handler(BaseHTTPRequestHandler):
    server: Any  # it has the answers

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.headers["authorization"] != self.server.key:
            self.reply(401, '{"error": "Unauthorized"}')
        else:
            self.answer(self.path)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or "null")
        self.server.asked.append((self.path, body))
        if body == {} and self.server.answers.get(self.path) is not None:
            self.reply(400, '{"error": {"message": "2 validation errors"}}')
        else:
            self.answer(body["method"] if self.path == "/collective_rpc" else self.path)

    def answer(self, method: str) -> None:
        answer = self.server.answers.get(method)
        if isinstance(answer, int):
            self.reply(answer, self.server.problem)
        elif answer is None:
            self.reply(404, '{"detail": "Not Found"}')
        elif self.path == "/collective_rpc" and not str(answer).startswith('{"results"'):
            self.reply(200, json.dumps({"results": [answer]}))
        else:
            self.reply(200, answer if isinstance(answer, str) else json.dumps(answer))

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def model() -> Untyped:
    return with_lora(make_model("llama")).eval()


@pytest.fixture
def server(model: Untyped, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server that generates two tokens of probability 1 with the current weights."""
    content = [{"token_id": 7, "logprob": 1.0, "top_logprobs": []}] * 2
    choice = {"token_ids": [7, 7], "logprobs": {"content": content}}
    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server: Any = served
    server.asked, server.key, server.problem = [], None, ""
    server.answers = {
        "/health": "",
        "/v1/models": {"data": [{"id": "model", "max_model_len": 4096}]},
        "tunesmith_missing_options": {},
        "tunesmith_checksums": {n: checksum(w) for n, w in PolicyWeights(model).untrained()},
        "tunesmith_begin": {},
        "tunesmith_add": {},
        "tunesmith_load": {},
        "/reset_prefix_cache": "",
        "/inference/v1/generate": {"choices": [choice]},
    }
    thread = Thread(target=served.serve_forever)
    thread.start()
    monkeypatch.setenv("TUNESMITH_ROLLOUT_URL", f"http://127.0.0.1:{served.server_address[1]}")
    # A proxy is never asked.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    yield server
    served.shutdown()
    served.server_close()
    thread.join()


def test_requests_name_the_weights_that_were_loaded(server: Any, model: Untyped) -> None:
    engine = VLLMEngine(model, PLAN)
    engine.start()
    seen = []
    for _ in range(2):
        [completion] = engine.generate([REQUEST])
        assert (completion.token_ids, completion.policy_logprobs) == ([7, 7], [0.0, 0.0])
        bodies = [body for path, body in server.asked if "rpc" in path or "generate" in path]
        [loaded] = [b["args"] for b in bodies if b.get("method") == "tunesmith_load"]
        assert [bodies[-1]["sampling_params"]["extra_args"]["tunesmith_weights"]] == loaded
        seen += loaded
        server.asked.clear()
    engine.close()
    assert len({*seen, ""}) == 3


def test_a_missing_server_is_lost_after_a_short_time(
    model: Untyped, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("TUNESMITH_ROLLOUT_URL", url)
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.0)
    with pytest.raises(EngineLost, match=f"the vLLM server at {url} does not answer"):
        VLLMEngine(model, PLAN).start()
    engine = VLLMEngine(model, PLAN)
    engine.interrupted = lambda: True
    with pytest.raises(Interrupted):  # instead of waiting
        engine.generate([REQUEST])


NO_METHOD = "Worker failed with error ''CPUWorker' object has no attribute 'tunesmith_{}'"
BASE = {"folder": "/srv/models/b", "dtype": "float32"}


@pytest.mark.parametrize(
    ("answers", "problem", "remedy"),
    [
        ({"/health": None}, "is not vLLM's: it answers 404 to /health", "without a path"),
        ({"/health": 302}, "is not vLLM's: it answers 302 to /health", "without a path"),
        ({"/health": 401}, "needs an API key, and TUNESMITH_ROLLOUT_TOKEN is empty", "--api-key"),
        ({"/v1/models": {"data": []}}, "is not vLLM's: it answers 200 to /v1", "without a path"),
        ({"/v1/models": {"data": ["a"]}}, "is not vLLM's: it answers 200 to", "without a path"),
        ({"tunesmith_missing_options": '{"results": []}'}, "is not vLLM's", "without a path"),
        ({"tunesmith_missing_options": "a"}, "is not vLLM's", "without a path"),
        (
            {"/v1/models": {"data": [{"max_model_len": "9"}]}},
            "is not vLLM's: it answers 200 to /v1/models",
            "without a path",
        ),
        ({"/v1/models": "<html>"}, "is not vLLM's: it answers 200 to /v1/models", "without a path"),
        (
            {"/v1/models": 401},
            "needs an API key, and TUNESMITH_ROLLOUT_TOKEN is empty",
            "--api-key",
        ),
        (
            {"/v1/models": {"data": [{"max_model_len": 9}]}},
            "at most 9 tokens per completion with its prompt, but the job needs 12",
            "--max-model-len 12",
        ),
        ({"tunesmith_missing_options": None}, "404 to /collective_rpc", "VLLM_SERVER_DEV_MODE=1"),
        (
            {"tunesmith_missing_options": {"--max-logprobs 2": ""}},
            "was started without --max-logprobs 2",
            "all options in docs/how-to/vllm.md",
        ),
        ({"tunesmith_missing_options": 500}, "without --worker-extension-cls", "version of Tune"),
        ({"/inference/v1/generate": None}, "404 to /inference/v1/generate", "--enable-scale-out"),
        (
            {"tunesmith_checksums": {}, "tunesmith_base_model": BASE},
            r"has another base model \(b\): its",
            "the job's base model, or set TUNESMITH_ROLLOUT_URL",
        ),
        (
            {"tunesmith_checksums": {}, "tunesmith_base_model": BASE | {"dtype": "bfloat16"}},
            "computes in bfloat16, but the job in float32",
            "--dtype float32",
        ),
    ],
)
def test_a_wrong_server_is_unavailable_with_a_remedy(
    server: Any, model: Untyped, answers: dict[str, Any], problem: str, remedy: str
) -> None:
    """Another attempt does not help, so the error is not EngineLost. It comes before training."""
    server.answers |= answers
    server.problem = NO_METHOD.format("missing_options")
    with pytest.raises(EngineUnavailable, match=problem) as caught:
        VLLMEngine(model, PLAN).start()
    assert remedy in caught.value.remedy


def test_a_wrong_api_key_is_unavailable(
    server: Any, model: Untyped, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "Bearer right"
    monkeypatch.setenv("TUNESMITH_ROLLOUT_TOKEN", "wrong")
    with pytest.raises(EngineUnavailable, match="refuses the API key in TUNESMITH_ROLLOUT_TOKEN"):
        VLLMEngine(model, PLAN).start()
    monkeypatch.setenv("TUNESMITH_ROLLOUT_TOKEN", "right")
    VLLMEngine(model, PLAN).start()


@pytest.mark.parametrize(("path", "status"), [("/health", 404), ("/v1/models", 500)])
def test_an_api_key_that_a_wrong_server_repeats_is_not_in_the_error(
    server: Any, model: Untyped, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    server.key = "Bearer s3cret-key"
    monkeypatch.setenv("TUNESMITH_ROLLOUT_TOKEN", "s3cret-key")
    server.answers[path] = status
    server.problem = "no route; authorization: Bearer s3cret-key"
    with pytest.raises(RolloutError, match=r"authorization: Bearer \[API key\]") as caught:
        VLLMEngine(model, PLAN).start()
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 503), ("/health", 429), ("/v1/models", 502), ("tunesmith_missing_options", 500)],
)
def test_an_outage_is_lost(
    server: Any, model: Untyped, path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.0)
    server.answers[path] = status
    with pytest.raises(EngineLost, match=f"answers {status} to /"):
        VLLMEngine(model, PLAN).start()


def test_a_completion_that_ends_at_the_servers_limit_is_refused(
    server: Any, model: Untyped
) -> None:
    with pytest.raises(EngineUnavailable, match="after 2 of 5 tokens, because") as caught:
        VLLMEngine(model, PLAN).generate([replace(REQUEST, max_tokens=5)])
    assert "--max-model-len 8, or more" in caught.value.remedy


def test_a_completion_that_the_server_aborts_is_lost(server: Any, model: Untyped) -> None:
    """vLLM aborts all requests when it stops."""
    [choice] = server.answers["/inference/v1/generate"]["choices"]
    choice |= {"finish_reason": "abort", "logprobs": None}
    with pytest.raises(EngineLost, match="aborted a completion"):
        VLLMEngine(model, PLAN).generate([replace(REQUEST, max_tokens=5)])


def test_answers_that_are_not_json_are_lost(server: Any, model: Untyped) -> None:
    server.answers["/inference/v1/generate"] = "<html>"
    with pytest.raises(EngineLost, match="vLLM failed: JSONDecodeError"):
        VLLMEngine(model, PLAN).generate([REQUEST])


def test_completions_of_other_weights_are_refused(server: Any, model: Untyped) -> None:
    """A second job has loaded its weights, or the server has started again."""
    [choice] = server.answers["/inference/v1/generate"]["choices"]
    other = {"token_id": 0, "logprob": OTHER_WEIGHTS, "top_logprobs": []}
    choice["token_ids"], choice["logprobs"]["content"] = [7, 0], [
        choice["logprobs"]["content"][0], other,
    ]  # fmt: skip
    arrived: list[int] = []
    with pytest.raises(EngineLost, match="lost this run's weights"):
        VLLMEngine(model, PLAN).generate([REQUEST], lambda index, _: arrived.append(index))
    assert arrived == []


def test_an_adapter_on_a_tied_head_is_refused() -> None:
    """vLLM shares the embedding's weight, so it would forget the adapter."""
    model = make_model("llama")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        adapted = with_lora(model, target_modules=["q_proj", "lm_head"])
    with pytest.raises(
        UnsupportedModel, match="lm_head: the head has an adapter, but shares its weights"
    ):
        PolicyWeights(adapted)
