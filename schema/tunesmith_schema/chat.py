"""Chat completions: OpenAI's request, answer and stream chunks."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from .base import Request, Response, with_example
from .bounds import JsonBound
from .sampling import (
    IGNORED,
    MAX_TEXT,
    MAX_TOKENS,
    FinishReason,
    Ignored,
    Sampling,
    Unsupported,
    Usage,
)

MAX_MESSAGES = 10_000
MAX_SCHEMA_BYTES = 64 * 1024
"""Maximum size of an answer's JSON Schema, as JSON."""


class TextPart(Request):
    """One part of a message; only text is supported."""

    type: Literal["text"]
    """Always `text`: images, audio and files are not supported."""
    text: str = Field(max_length=MAX_TEXT)
    """Text of the part; the parts of a message are joined."""


class ChatMessage(Request):
    """One message of a conversation. The `message` of an answer can be sent unchanged as a message
    of the next request."""

    role: Literal["system", "developer", "user", "assistant"]
    """Role of the author; `developer` means `system`. Tools are not supported."""
    content: (
        Annotated[str, Field(max_length=MAX_TEXT)]
        | Annotated[list[TextPart], Field(min_length=1, max_length=1000, fail_fast=True)]
    )
    """Text, or a list of text parts."""
    name: str | None = Field(default=None, max_length=64)
    """Name of the speaker; most chat templates ignore it."""
    refusal: Unsupported = None
    """Not supported."""
    annotations: Unsupported = None
    """Not supported."""
    audio: Unsupported = None
    """Not supported."""
    tool_calls: Unsupported = None
    """Not supported."""
    function_call: Unsupported = None
    """Not supported."""

    def for_engine(self) -> dict[str, str]:
        """Return the message with its parts joined to one text, and with a role that chat templates
        know."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": content}
        return message | ({"name": self.name} if self.name else {})


_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _named_schema(value: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    if unknown := value.keys() - {"name", "description", "schema", "strict"}:
        raise ValueError(
            f"has the unknown key {min(unknown)[:80]!r}: use name, description, schema and strict"
        )
    if not _SCHEMA_NAME.fullmatch(str(value.get("name"))):
        raise ValueError("needs a 'name' of 1 to 64 letters, digits, '_' and '-'")
    if not isinstance(value.get("schema", {}), dict):
        raise ValueError("needs a JSON object as 'schema'")
    return value


NamedSchema = Annotated[
    dict[str, Any], JsonBound(MAX_SCHEMA_BYTES, finite=True), AfterValidator(_named_schema)
]  # Any: JSON
"""JSON Schema of the answers (`schema`), and the name of the schema (`name`). `description` and
`strict` are accepted, but have no effect."""


class ResponseFormat(Request):
    """Form of the answers."""

    type: Literal["text", "json_object", "json_schema"]
    """Form of the answers: any text, any JSON object, or JSON that fulfils `json_schema`."""
    json_schema: NamedSchema | None = None
    """JSON Schema of the answers, with a name. Answers fulfil this schema, even without `strict`.
    An answer that is cut off may not fulfil the schema."""

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError(
                "set 'json_schema' if 'type' is 'json_schema', and leave it out otherwise"
            )
        return self


NoTools = Annotated[Literal["none", "auto"] | None, IGNORED]


class ChatRequest(Sampling):
    """Body of `POST /v1/chat/completions`."""

    model_config = with_example(
        {"model": "my-model", "messages": [{"role": "user", "content": "Who are you?"}]}
    )

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    """The conversation so far."""
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """OpenAI's newer name of `max_tokens`."""
    logprobs: bool | None = None
    """Return the log-probability of each generated token."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Number of most probable tokens to return at each position; needs `logprobs`."""
    response_format: ResponseFormat | None = None
    """Form of the answer: text, a JSON object, or JSON that fulfils a schema."""
    tools: Unsupported = None
    """Not supported."""
    functions: Unsupported = None
    """Not supported."""
    tool_choice: NoTools = None
    """Ignored, because tools are not supported."""
    function_call: NoTools = None
    """Ignored, because tools are not supported."""
    modalities: Annotated[Annotated[list[Literal["text"]], Field(max_length=1)] | None, IGNORED] = (
        None
    )
    """Answers are text."""
    audio: Unsupported = None
    """Not supported."""
    reasoning_effort: Unsupported = None
    """Not supported."""
    verbosity: Unsupported = None
    """Not supported."""
    web_search_options: Unsupported = None
    """Not supported."""
    moderation: Unsupported = None
    """Not supported."""
    parallel_tool_calls: Ignored = None
    """Ignored."""
    metadata: Ignored = None
    """Ignored."""
    store: Ignored = None
    """Ignored: answers are never stored."""
    prediction: Ignored = None
    """Ignored."""
    service_tier: Ignored = None
    """Ignored."""
    safety_identifier: Ignored = None
    """Ignored."""
    prompt_cache_key: Ignored = None
    """Ignored."""
    prompt_cache_options: Ignored = None
    """Ignored."""
    prompt_cache_retention: Ignored = None
    """Ignored."""

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("needs 'logprobs': true")
        return value

    def for_engine(self) -> dict[str, Any]:  # Any: JSON
        messages = [message.for_engine() for message in self.messages]
        return super().for_engine() | {"messages": messages}


class TopLogprob(Response):
    """A probable token at one position, and its log-probability."""

    token: str
    """Text of the token."""
    logprob: float
    """Natural logarithm of the probability."""
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """A generated token, its log-probability, and the most probable tokens at its position."""

    top_logprobs: list[TopLogprob] = Field(default_factory=list)
    """Most probable tokens; the request's `top_logprobs` sets their number."""


class ChoiceLogprobs(Response):
    """Log-probabilities of one answer."""

    content: list[TokenLogprob] | None = None
    """One item for each token of the text."""


class ChatAnswer(Response):
    """Message that the model wrote."""

    role: Literal["assistant"] = "assistant"
    """Role of the author, always `assistant`."""
    content: str | None = None
    """Text of the answer."""
    refusal: str | None = None
    """OpenAI's field; always null."""


class ChatChoice(Response):
    """One of the `n` answers."""

    index: int
    """Number of the answer, from 0."""
    message: ChatAnswer
    """The answer."""
    finish_reason: FinishReason
    """Reason why the answer ended. `stop`: the model ended the answer, or a stop text occurred;
    `length`: the answer reached the maximum number of tokens."""
    logprobs: ChoiceLogprobs | None = None
    """Log-probabilities of the tokens; null if the request does not ask for `logprobs`."""


class ChatCompletion(Response):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """Time of creation, Unix seconds."""
    model: str
    choices: list[ChatChoice]
    """The `n` answers."""
    usage: Usage | None = None
    """Token counts."""


class ChatDelta(Response):
    """New part of an answer."""

    role: str | None = None
    """Role of the author, only in the first chunk of an answer."""
    content: str | None = None
    """Text to append to the answer."""


class ChatChunkChoice(Response):
    """New part of one of the `n` answers."""

    index: int
    """Number of the answer, from 0."""
    delta: ChatDelta
    """The new part."""
    finish_reason: FinishReason | None = None
    """Reason why the answer ended, only in the last chunk of an answer."""
    logprobs: ChoiceLogprobs | None = None
    """Log-probabilities of the tokens of this part; null if the request does not ask for
    `logprobs`."""


class ChatChunk(Response):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    """Time of creation, Unix seconds."""
    model: str
    choices: list[ChatChunkChoice]
    """New parts of the answers; empty in the chunk with `usage`."""
    usage: Usage | None = None
    """Token counts, in the last chunk if `stream_options.include_usage` is set."""
