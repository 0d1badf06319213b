"""Parameters that chat and text completions share, and the parameters that Tunesmith refuses.

OpenAI's parameters that do not change the output are accepted and ignored. A request with an
unsupported parameter that would change the output is refused, and the error names the parameter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .base import Request, Response, Text
from .bounds import JsonBound

MAX_TEXT = 1_000_000
"""Maximum length of a prompt or a message, in characters; a request's body has at most 1 MiB."""
MAX_TOKENS = 1_000_000
"""Largest value of `max_tokens` and similar parameters."""
MAX_CHOICES = 128
NOT_SUPPORTED = "not_supported"
"""Type of the validation error for a parameter that is not supported."""


def _absent(value: Any) -> Any:  # Any: whatever JSON the caller sent
    if value in (None, [], {}, ""):
        return None
    raise PydanticCustomError(NOT_SUPPORTED, "is not supported: leave it out")


Unsupported = Annotated[Any, JsonBound(64 * 1024), AfterValidator(_absent)]  # Any: JSON
"""Parameter that is not supported; only null and empty values are accepted."""
IGNORED = "ignored"
"""Annotation of a field that is not sent to the inference server."""
Ignored = Annotated[Any, JsonBound(64 * 1024), IGNORED]  # Any: JSON
"""Parameter that does not change the output."""
ModelName = Annotated[Text, Field(min_length=1, max_length=512)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]


class StreamOptions(Request):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """Send the token counts in an additional last chunk."""
    include_obfuscation: bool | None = None
    """Ignored: chunks are not padded."""


class Sampling(Request):
    """Parameters of chat completions and of text completions."""

    model: ModelName
    """Base model, tuned model (`ft:...`) or checkpoint (`ft:...:ckpt-step-N`)."""
    stream: bool | None = None
    """Send the answer as server-sent events while it is generated."""
    stream_options: StreamOptions | None = None
    """Options of the stream; allowed only with `stream`."""
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    """Number of answers; the default is 1."""
    max_tokens: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    """Maximum number of generated tokens of each answer."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature; the default is 1. With 0, the most probable token is always chosen."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Nucleus sampling: sample from the smallest set of tokens whose probabilities sum to at least
    `top_p`; the default is 1."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Value subtracted from a token's logit for each occurrence of the token in the answer; the
    default is 0."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Value subtracted once from the logit of each token that occurs in the answer; the default is
    0."""
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    """Seed of the sampling. The same seed and parameters give the same answer."""
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    """Up to 4 texts; the answer ends before the first occurrence of any of them."""
    logit_bias: Unsupported = None
    """Not supported."""
    user: Ignored = None
    """Ignored."""

    @field_validator("stream_options")
    @classmethod
    def _only_with_stream(
        cls, value: StreamOptions | None, info: ValidationInfo
    ) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("is allowed only with 'stream': true")
        return value

    def for_engine(self) -> dict[str, Any]:  # Any: JSON
        """Return the parameters to send to the inference server: all that are set, except the
        ignored ones."""
        fields = type(self).model_fields.items()
        ignored: dict[str, Any] = {
            name: True for name, field in fields if IGNORED in field.metadata
        }
        ignored["stream_options"] = {"include_obfuscation"}
        return self.model_dump(mode="json", exclude_none=True, exclude=ignored)


class Usage(Response):
    """Token counts of one request."""

    prompt_tokens: int
    """Number of tokens of the prompt."""
    completion_tokens: int
    """Number of generated tokens of all answers."""
    total_tokens: int
    """Sum of prompt tokens and generated tokens."""


FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
