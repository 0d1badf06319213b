"""Client of a vLLM server that is missing, wrong, or used by another job. The server is a fake."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.worker.engine.patches.models import make_model, with_lora
from tunesmith_worker.engine.rollout import EngineLost, Interrupted, Request, RolloutPlan
from tunesmith_worker.engine.rollout.fold import checksum
from tunesmith_worker.engine.rollout.protocol import UnsupportedModel
from tunesmith_worker.engine.rollout.vllm import VLLMEngine
from tunesmith_worker.engine.rollout.vllm import engine as module
from tunesmith_worker.engine.rollout.vllm.weights import PolicyWeights
from tunesmith_worker.engine.rollout.vllm.wire import OTHER_WEIGHTS

Untyped = Any  # Any: transformers is not typed

PLAN = RolloutPlan(weights="merged", max_rows=4)
REQUEST = Request(prompt_ids=(3, 4, 5), max_tokens=2, seed=1)


class Handler(BaseHTTPRequestHandler):
    server: Any  # it has the answers

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        self.reply(200, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or "null")
        self.server.asked.append((self.path, body))
        method = body["method"] if self.path == "/collective_rpc" else self.path
        answer = self.server.answers.get(method)
        if answer is None:
            self.reply(404, '{"detail": "Not Found"}')
        elif self.path == "/collective_rpc":
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
    server.asked = []
    server.answers = {
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


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"tunesmith_missing_options": None}, r"answers 404 to /collective_rpc.*how-to/vllm\.md"),
        ({"tunesmith_missing_options": {"--max-logprobs 2": ""}}, "without --max-logprobs 2"),
        ({"tunesmith_checksums": {}}, "serves another base model or dtype: its"),
        ({"/inference/v1/generate": None}, r"answers 404 to /inference/v1/generate"),
        ({"/inference/v1/generate": "<html>"}, "vLLM failed: JSONDecodeError"),
    ],
)
def test_a_wrong_server_is_named(
    server: Any, model: Untyped, answers: dict[str, Any], problem: str
) -> None:
    server.answers |= answers
    with pytest.raises(EngineLost, match=problem):
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
    with pytest.raises(UnsupportedModel, match="lm_head: an adapter on a head tied"):
        PolicyWeights(adapted)
