"""`client.chat.completions` and `client.completions`: objects, streams and errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import tunesmith

from .fakes import Script, client_of

QUESTION = [{"role": "user", "content": "Who are you?"}]
ANSWER: dict[str, Any] = {
    "id": "c-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [
        {
            "index": 0, "finish_reason": "stop",
            "message": {"role": "assistant", "content": "A model.", "refusal": None},
            "logprobs": {"content": [{"token": "A", "logprob": -0.5, "top_logprobs": []}]},
        }
    ],
    "usage": {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7},
}  # fmt: skip


def chunk(content: str | None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return {"id": "c-1", "created": 1, "model": "m", "choices": [choice], **fields}


def sse(*events: Any, end: str = "data: [DONE]\n\n") -> httpx.Response:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
    headers = {"content-type": "text/event-stream", "x-request-id": "req-9"}
    return httpx.Response(200, text=text, headers=headers)


def test_an_answer_has_the_shapes_of_openais_package() -> None:
    script = Script(httpx.Response(200, json=ANSWER))
    answer = client_of(script).chat.completions.create(
        model="m", messages=QUESTION, temperature=0, stop=["x"], logprobs=True,
        response_format={"type": "json_object"},
    )  # fmt: skip
    assert answer.choices[0].message.content == "A model."
    assert answer.usage
    assert answer.usage.total_tokens == 7
    assert answer.choices[0].logprobs
    assert answer.choices[0].logprobs.content
    assert answer.choices[0].logprobs.content[0].logprob == -0.5
    assert json.loads(script.bodies[0]) == {
        "model": "m", "messages": QUESTION, "temperature": 0.0, "stop": ["x"], "logprobs": True,
        "response_format": {"type": "json_object"},
    }  # fmt: skip
    assert script.requests[0].url.path == "/v1/chat/completions"


def test_an_answer_can_be_sent_back() -> None:
    script = Script(httpx.Response(200, json=ANSWER))
    client = client_of(script)
    answer = client.chat.completions.create(model="m", messages=QUESTION)
    client.chat.completions.create(model="m", messages=[*QUESTION, answer.choices[0].message])
    sent = json.loads(script.bodies[1])["messages"][1]
    assert (sent["role"], sent["content"]) == ("assistant", "A model.")


def test_a_stream_yields_chunks_and_ends() -> None:
    last = chunk(None, usage=ANSWER["usage"], choices=[])
    script = Script(sse(chunk("A "), chunk("model."), last))
    stream = client_of(script).chat.completions.create(model="m", messages=QUESTION, stream=True)
    with stream:
        chunks = list(stream)
    texts = [part.choices[0].delta.content for part in chunks if part.choices]
    assert texts == ["A ", "model."]
    assert chunks[-1].usage
    assert stream.response.is_closed
    assert json.loads(script.bodies[0])["stream"] is True


def test_errors_in_mid_stream() -> None:
    error = {"error": {"message": "no memory", "type": "server_error", "code": "out_of_memory"}}
    stream = client_of(Script(sse(chunk("A"), error, end=""))).chat.completions.create(
        model="m", messages=QUESTION, stream=True
    )
    assert next(stream).choices
    with pytest.raises(tunesmith.APIStreamError, match="no memory") as failed:
        next(stream)
    assert (failed.value.code, failed.value.request_id) == ("out_of_memory", "req-9")

    cut = client_of(Script(sse(chunk("A"), end=""))).chat.completions.create(
        model="m", messages=QUESTION, stream=True
    )
    with pytest.raises(tunesmith.APIConnectionError, match="before the answer was complete"):
        list(cut)


def test_completions() -> None:
    choice = {"index": 0, "text": "b", "finish_reason": "length", "logprobs": None}
    answer = {"id": "c", "created": 1, "model": "m", "choices": [choice]}
    script = Script(httpx.Response(200, json=answer), sse(answer))
    client = client_of(script)
    done = client.completions.create(model="m", prompt=[[1, 2]], max_tokens=1, logprobs=2)
    assert (done.choices[0].text, done.object) == ("b", "text_completion")
    parts = client.completions.create(model="m", prompt="a", stream=True)
    assert [part.choices[0].text for part in parts] == ["b"]


def test_wrong_arguments_are_refused_before_the_request() -> None:
    script = Script(httpx.Response(200, json=ANSWER))
    create: Any = client_of(script).chat.completions.create
    wrong: list[dict[str, Any]] = [
        {"temperature": 3}, {"tools": [1]}, {"top_k": 3}, {"messages": []},
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(tunesmith.InvalidArgumentError, match=next(iter(arguments))):
            create(**{"model": "m", "messages": QUESTION, **arguments})
    assert script.requests == []


def test_a_full_queue_is_tried_again() -> None:
    error = {"error": {"message": "full", "type": "t", "retryable": True}}
    full = httpx.Response(429, json=error, headers={"retry-after": "3"})
    script = Script(full, httpx.Response(200, json=ANSWER))
    assert client_of(script).chat.completions.create(model="m", messages=QUESTION).choices
    with pytest.raises(tunesmith.RateLimitError):
        client_of(Script(full)).completions.create(model="m", prompt="a", stream=True)
