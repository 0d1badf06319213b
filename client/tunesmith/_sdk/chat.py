"""`client.chat.completions` and `client.completions`: answers of base models, tuned models and
checkpoints, in the format of the `openai` package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from pydantic import BaseModel, ValidationError

from tunesmith._http.connection import Http
from tunesmith._http.errors import invalid_argument
from tunesmith_schema import ChatChunk, ChatCompletion, ChatRequest, Completion, CompletionRequest

from .stream import M, Stream

Message = Mapping[str, Any] | BaseModel  # Any: JSON
"""Message of a conversation: `{"role": ..., "content": ...}`, or the `message` of an answer."""
_READ_TIMEOUT = 600.0
"""Maximum seconds without a byte from the server. The first request may take minutes, because the
server loads the model, and the request may wait in a queue."""


class SamplingParameters(TypedDict, total=False):
    """Optional parameters of chat completions and text completions; docs/reference/api.md explains
    each parameter."""

    n: int | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stream_options: Mapping[str, bool] | None
    user: str | None


class ChatParameters(SamplingParameters, total=False):
    """Optional parameters of a chat completion."""

    max_completion_tokens: int | None
    logprobs: bool | None
    top_logprobs: int | None
    response_format: Mapping[str, Any] | None  # Any: JSON
    metadata: Mapping[str, str] | None


class CompletionParameters(SamplingParameters, total=False):
    """Optional parameters of a text completion."""

    logprobs: int | None
    echo: bool | None


class ChatCompletions:
    """Chat completions: `client.chat.completions`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    @overload
    def create(
        self,
        *,
        model: str,
        messages: Iterable[Message],
        stream: Literal[False] | None = None,
        **parameters: Unpack[ChatParameters],
    ) -> ChatCompletion: ...

    @overload
    def create(
        self,
        *,
        model: str,
        messages: Iterable[Message],
        stream: Literal[True],
        **parameters: Unpack[ChatParameters],
    ) -> Stream[ChatChunk]: ...

    def create(
        self,
        *,
        model: str,
        messages: Iterable[Message],
        stream: bool | None = None,
        **parameters: Unpack[ChatParameters],
    ) -> ChatCompletion | Stream[ChatChunk]:
        """Answer a conversation. With `stream`, return an iterator over the parts of the answer;
        closing the iterator stops the generation."""
        plain = [message.model_dump() if isinstance(message, BaseModel) else dict(message)
                 for message in messages]  # fmt: skip
        body = _checked(ChatRequest, model=model, messages=plain, stream=stream, **parameters)
        if stream:
            return _stream(self._http, ChatChunk, "chat/completions", body)
        path = "chat/completions"
        return self._http.post(ChatCompletion, path, json=body, read_timeout=_READ_TIMEOUT)


class Chat:
    """`client.chat`."""

    def __init__(self, http: Http) -> None:
        self.completions = ChatCompletions(http)


class Completions:
    """Text completions: `client.completions`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    @overload
    def create(
        self,
        *,
        model: str,
        prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        stream: Literal[False] | None = None,
        **parameters: Unpack[CompletionParameters],
    ) -> Completion: ...

    @overload
    def create(
        self,
        *,
        model: str,
        prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        stream: Literal[True],
        **parameters: Unpack[CompletionParameters],
    ) -> Stream[Completion]: ...

    def create(
        self,
        *,
        model: str,
        prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        stream: bool | None = None,
        **parameters: Unpack[CompletionParameters],
    ) -> Completion | Stream[Completion]:
        """Continue one or more texts, or token ids. With `stream`, return an iterator over the
        parts; closing the iterator stops the generation."""
        body = _checked(CompletionRequest, model=model, prompt=prompt, stream=stream, **parameters)
        if stream:
            return _stream(self._http, Completion, "completions", body)
        return self._http.post(Completion, "completions", json=body, read_timeout=_READ_TIMEOUT)


def _checked(kind: type[BaseModel], **arguments: Any) -> dict[str, Any]:  # Any: JSON
    """Return the request as JSON. Raises InvalidArgumentError for an invalid request."""
    try:
        body = kind.model_validate({k: v for k, v in arguments.items() if v is not None})
    except ValidationError as error:
        raise invalid_argument(error) from error
    return body.model_dump(mode="json", exclude_unset=True)


def _stream(http: Http, kind: type[M], path: str, body: Mapping[str, Any]) -> Stream[M]:
    # Any: JSON
    headers = {"Accept": "text/event-stream"}
    response = http.send(
        "POST", path, json=body, headers=headers, read_timeout=_READ_TIMEOUT, stream=True
    )
    return Stream(http, response, kind)
