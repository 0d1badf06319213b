"""Text completions: OpenAI's request and answer. A stream sends the answer in parts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from .base import Response, with_example
from .sampling import MAX_CHOICES, MAX_TEXT, FinishReason, Sampling, Unsupported, Usage

MAX_PROMPTS = 2048
MAX_TOKEN_ID = 2**31 - 1

Prompt = Annotated[str, Field(max_length=MAX_TEXT)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
PromptTokens = Annotated[list[TokenId], Field(min_length=1, max_length=500_000, fail_fast=True)]


class CompletionRequest(Sampling):
    """Body of `POST /v1/completions`."""

    model_config = with_example({"model": "my-model", "prompt": "Once upon a time"})

    prompt: (
        Prompt
        | PromptTokens
        | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[PromptTokens], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    """A text, a list of token ids, or a list of several prompts; each prompt gets `n` answers."""
    logprobs: int | None = Field(default=None, ge=0, le=20)
    """Number of most probable tokens to return at each position. If set, the log-probability of
    each token of the answer is returned too."""
    echo: bool | None = None
    """Return the prompt in front of the answer."""
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    """OpenAI's field; it must equal `n`."""
    suffix: Unsupported = None
    """Not supported."""

    @field_validator("best_of")
    @classmethod
    def _equals_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value != (info.data.get("n") or 1):
            raise ValueError("must be the value of 'n': leave it out")
        return None


class CompletionLogprobs(Response):
    """Log-probabilities of the tokens of one answer; the lists have one item for each token."""

    tokens: list[str] | None = None
    """Texts of the tokens."""
    token_logprobs: list[float | None] | None = None
    """Natural logarithms of the probabilities; null for the first token of a prompt."""
    top_logprobs: list[dict[str, float] | None] | None = None
    """Most probable tokens at each position, with their log-probabilities."""
    text_offset: list[int] | None = None
    """Position of each token in the text, in characters."""


class CompletionChoice(Response):
    """One answer, or a part of it in a stream."""

    index: int
    """Number of the answer, from 0."""
    text: str
    """Text of the answer; in a stream, the text to append."""
    finish_reason: FinishReason | None = None
    """Reason why the answer ended. `stop`: the model ended the answer, or a stop text occurred;
    `length`: the answer reached the maximum number of tokens."""
    logprobs: CompletionLogprobs | None = None
    """Log-probabilities of the tokens, if the request has `logprobs`."""


class Completion(Response):
    """Answer of `POST /v1/completions`, or one event of a streamed answer."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    """Time of creation, Unix seconds."""
    model: str
    choices: list[CompletionChoice]
    """The answers. In a stream, the event with `usage` has no answers."""
    usage: Usage | None = None
    """Token counts."""
