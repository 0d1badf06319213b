"""The inference process with the real OpenAI client, which validates every answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import transformers

from tests.worker.engine.serving.engines import save_adapters, save_base

from .processes import TOKEN, Inference, inference

MESSAGES: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
TUNED = "ft:base:org:suffix:job/1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inference")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Inference]:
    base = save_base(folder / "models" / "base", "qwen2")
    save_base(
        folder / "models" / "other",
        config=transformers.GPT2Config(
            n_embd=48, n_layer=2, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=2
        ),
    )
    save_adapters(base, folder / "adapters", 2)
    with inference(folder / "models", folder / "cache") as process:
        process.add_base("base")
        process.add_base("other")
        yield process


def wait_for(running: Inference, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while not done(health := running.health()):
        assert time.monotonic() < deadline, health
        time.sleep(0.01)
    return health


def is_idle(health: dict[str, Any]) -> bool:
    return bool(health["running"] == health["queued"] == 0)


def greedy_text(folder: Path, messages: list[Any], new: int) -> str:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    out = model.generate(input_ids=ids, max_new_tokens=new, do_sample=False, pad_token_id=0)
    decoded: str = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    return decoded


def test_chat_answers_as_transformers(running: Inference, folder: Path) -> None:
    client = running.openai()
    for name, engine in (("base", "native"), ("other", "transformers")):
        raw = client.chat.completions.with_raw_response.create(
            model=name, messages=MESSAGES, temperature=0, max_completion_tokens=20
        )
        answer = raw.parse()
        assert raw.headers["x-tunesmith-engine"] == engine
        expected = greedy_text(folder / "models" / name, MESSAGES, 20)
        assert answer.choices[0].message.content == expected
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20
        pieces = client.chat.completions.create(
            model=name, messages=MESSAGES, temperature=0, max_tokens=20, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == expected


def test_a_stream_has_roles_choices_logprobs_and_usage(running: Inference) -> None:
    chunks = list(
        running.openai().chat.completions.create(
            model="base",
            messages=MESSAGES,
            seed=1,
            n=3,
            max_completion_tokens=6,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [c.choices[0].delta.role for c in chunks[:3]] == ["assistant"] * 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 18
    scores = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    assert sum(len(one.content or ()) for one in scores) == 18
    ends = {c.choices[0].index: c.choices[0].finish_reason for c in chunks if c.choices}
    assert ends == {0: "length", 1: "length", 2: "length"}
    assert len({c.id for c in chunks}) == 1


def test_text_completions_take_texts_and_token_ids(running: Inference) -> None:
    client = running.openai()
    answer = client.completions.create(
        model="base", prompt=["The capital", "How much"], temperature=0, max_tokens=5, logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or ()) == 5
    tokenizer = transformers.AutoTokenizer.from_pretrained(running.models / "base")
    same = client.completions.create(
        model="base", prompt=tokenizer("The capital")["input_ids"], temperature=0, max_tokens=5
    )
    assert same.choices[0].text == answer.choices[0].text
    # The client's type has no null finish_reason, which OpenAI sends in every chunk but the last.
    loose = openai.OpenAI(base_url=f"{running.url}/v1", api_key=TOKEN)
    pieces = list(
        loose.completions.create(
            model="base", prompt="The capital", temperature=0, max_tokens=5, stream=True
        )
    )
    assert "".join(chunk.choices[0].text for chunk in pieces) == answer.choices[0].text
    assert pieces[-1].choices[0].finish_reason == "length"
    loose.close()


@pytest.mark.parametrize("model", ["base", "other"])
def test_echo_returns_the_prompt_with_its_log_probs(running: Inference, model: str) -> None:
    """`logprobs` of the prompt, as lm-eval reads them: for token ids and texts, with 0 and 1 new
    tokens, whole and streamed."""
    folder = running.models / model
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    causal = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer("The capital of France")["input_ids"]
    with torch.no_grad():
        log_probs = causal(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(log_probs[i, token]) for i, token in enumerate(ids[1:])]
    for prompt in (ids, [ids], "The capital of France"):
        for new in (0, 1):
            body = {"model": model, "prompt": prompt, "max_tokens": new, "temperature": 0}
            body |= {"echo": True, "logprobs": 1, "seed": 1}
            answer = running.http.post("/v1/completions", json=body).json()
            [choice], usage = answer["choices"], answer["usage"]
            scores = choice["logprobs"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids), new)
            assert scores["token_logprobs"][0] is None
            assert scores["top_logprobs"][0] is None
            assert scores["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-4)
            best = [max(top.values()) for top in scores["top_logprobs"][1 : len(ids)]]
            assert best == pytest.approx(log_probs[:-1].amax(-1).tolist(), abs=1e-4)
            lengths = {len(values) for values in scores.values()}
            assert lengths == {len(ids) + new}
            assert choice["text"].startswith("The capital of France")
            assert choice["finish_reason"] == "length"
    with running.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as lines:
        chunks = [json.loads(line[6:]) for line in lines.iter_lines() if line.startswith("data: {")]
    parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(part["text"] for part in parts) == choice["text"]
    streamed = [value for p in parts if p["logprobs"] for value in p["logprobs"]["token_logprobs"]]
    assert streamed[1:] == pytest.approx(scores["token_logprobs"][1:], abs=1e-5)
    plain = running.http.post(
        "/v1/completions", json={"model": model, "prompt": "Who", "echo": True, "max_tokens": 1}
    ).json()["choices"][0]
    assert (plain["text"][:3], plain["logprobs"]) == ("Who", None)


def test_json_answers_satisfy_their_schema(running: Inference) -> None:
    pytest.importorskip("llguidance")
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
    }
    schema["additionalProperties"] = False
    answer = running.openai().chat.completions.create(
        model="base",
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content or "")["a"] in (1, 2)
    with pytest.raises(openai.BadRequestError) as refused:
        running.openai().chat.completions.create(
            model="base",
            messages=MESSAGES,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
            },
        )
    assert refused.value.param == "response_format"


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", 3),
        ("top_p", -1),
        ("n", 0),
        ("stop", ["a"] * 5),
        ("stop", ""),
        ("max_completion_tokens", 0),
        ("top_logprobs", 2),
        ("logit_bias", {"5": 1}),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "xml"}),
        ("stream_options", {"include_usage": True}),
        ("reasoning_effort", "low"),
        ("seed", "one"),
        ("unheard_of", 1),
        ("messages", []),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(running: Inference, param: str, value: Any) -> None:
    body = {"model": "base", "messages": MESSAGES, param: value}
    answer = running.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"]


def test_parameters_without_an_effect_are_accepted(running: Inference) -> None:
    running.openai().chat.completions.create(
        model="base", messages=MESSAGES, max_tokens=1, user="me", metadata={"a": "b"}, store=False
    )


def test_a_prompt_longer_than_the_context_is_refused(running: Inference) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        running.openai().completions.create(model="base", prompt=[7] * 600)
    assert refused.value.code == "context_length_exceeded"


def test_a_request_is_bounded_before_anything_is_built(running: Inference) -> None:
    body: dict[str, Any] = {"model": "base", "prompt": [[7]] * 100, "n": 3, "max_tokens": 1}
    answer = running.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    body = {"model": "base", "messages": MESSAGES, "n": 128, "logprobs": True, "top_logprobs": 20}
    answer = running.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_completion_tokens")
    body = {"model": "base", "prompt": [[7] * 100] * 200, "max_tokens": 400, "logprobs": 20}
    error = running.http.post("/v1/completions", json=body).json()["error"]
    assert (error["param"], "lower max_tokens, n or logprobs" in error["message"]) == (
        "max_tokens",
        True,
    )


def test_a_tiny_temperature_is_greedy_and_harms_nobody(running: Inference) -> None:
    create = running.openai().chat.completions.create
    asked: dict[str, Any] = {"model": "base", "messages": MESSAGES, "max_tokens": 5}
    contents = [
        create(**asked, temperature=temperature).choices[0].message.content
        for temperature in (0, 1e-40)
    ]
    assert contents[0] == contents[1]


def test_an_adapter_of_a_tuned_model_answers(running: Inference, folder: Path) -> None:
    """The base of the adapter is a fully tuned model, which only the API has."""
    running.add_files("ft:full", "base", "full", folder / "models" / "base")
    running.add_files("ft:on-full", "ft:full", "adapter", folder / "adapters" / "adapter-1")
    answers = {
        model: running.openai()
        .chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=12)
        .choices[0]
        .message.content
        for model in ("ft:full", "ft:on-full", "base")
    }
    assert answers["ft:full"] == answers["base"] != answers["ft:on-full"]


def test_only_the_api_may_ask(running: Inference) -> None:
    body = {"model": "base", "messages": MESSAGES}
    for headers in ({}, {"authorization": "Bearer wrong"}):
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 401
    assert httpx.get(f"{running.url}/health").json()["status"] == "ready"


def test_a_tuned_model_is_uploaded_once_and_deleted(running: Inference, folder: Path) -> None:
    client = running.openai()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model=TUNED, messages=MESSAGES)
    assert unknown.value.code == "model_not_loaded"
    adapter = folder / "adapters" / "adapter-0"
    assert "adapter_model.safetensors" in running.add_files(TUNED, "base", "adapter", adapter)
    assert running.add_files(TUNED, "base", "adapter", adapter) == []

    def ask(model: str) -> str | None:
        answer = client.chat.completions.create(
            model=model, messages=MESSAGES, temperature=0, max_tokens=12
        )
        return answer.choices[0].message.content

    first = ask(TUNED)
    assert first != ask("base")
    running.add_files(TUNED, "base", "adapter", folder / "adapters" / "adapter-1")
    assert ask(TUNED) != first
    path = "/models/ft%3Abase%3Aorg%3Asuffix%3Ajob%2F1"
    running.http.delete(path).raise_for_status()
    assert running.http.delete(path).status_code == 404


def test_a_damaged_upload_is_refused(running: Inference) -> None:
    headers = {"x-sha256": "0" * 64}
    answer = running.http.put("/models/m/files/a.json", content=b"x", headers=headers)
    assert answer.status_code == 422
    answer = running.http.put("/models/m/files/..%2Fa", content=b"x", headers=headers)
    assert answer.status_code in (400, 404, 405)


def test_fifty_streams_at_once_are_each_correct(running: Inference, folder: Path) -> None:
    """Of the base and an adapter, with unequal prompts."""
    running.add_files(TUNED, "base", "adapter", folder / "adapters" / "adapter-0")
    alone = running.openai()
    bodies: list[dict[str, Any]] = [
        {
            "model": ("base", TUNED)[i % 2],
            "messages": [{"role": "user", "content": "word " * (1 + i % 25)}],
            "max_tokens": 5 + i % 10,
            "temperature": 0,
        }
        for i in range(50)
    ]

    async def stream(client: openai.AsyncOpenAI, body: dict[str, Any]) -> str:
        chunks = await client.chat.completions.create(**body, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key=TOKEN, max_retries=0
        ) as client:
            return await asyncio.gather(*(stream(client, body) for body in bodies))

    together = asyncio.run(all_at_once())
    for body, text in zip(bodies, together, strict=True):
        answer = alone.chat.completions.create(**body)
        assert text == answer.choices[0].message.content


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_connection_cancels_and_frees_the_cache(running: Inference, stream: bool) -> None:
    before = running.health()["cancelled"]
    body = {"model": "base", "prompt": "word", "max_tokens": 400, "stream": stream, "n": 8}
    headers = {"authorization": f"Bearer {TOKEN}"}
    if stream:
        with httpx.stream(
            "POST", f"{running.url}/v1/completions", json=body, headers=headers, timeout=60
        ) as answer:
            next(answer.iter_lines())
            assert running.health()["running"]
    else:
        connection = HTTPConnection(running.url.removeprefix("http://"))
        with closing(connection):
            headers["content-type"] = "application/json"
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            wait_for(running, lambda health: bool(health["running"]))
    health = wait_for(running, is_idle)
    assert health["cached_tokens"] == 0
    assert health["cancelled"] > before


def test_an_idle_model_is_unloaded_and_loads_again(folder: Path) -> None:
    settings = {"TUNESMITH_INFERENCE_IDLE_SECONDS": "0.4"}
    save_base(folder / "models" / "base", "qwen2")
    with inference(folder / "models", folder / "idle", **settings) as process:
        process.add_base("base")
        client = process.openai()
        for _ in range(2):
            client.completions.create(model="base", prompt="word", max_tokens=1)
            assert process.health()["loaded"] == ["base"]
            wait_for(process, lambda health: health["loaded"] == [])


def test_without_a_token_the_process_does_not_start(folder: Path) -> None:
    from tunesmith_worker.inference.settings import InferenceSettings

    with pytest.raises(ValueError, match="TUNESMITH_INFERENCE_TOKEN"):
        InferenceSettings(inference_token="").check()
