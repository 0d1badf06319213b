"""Parameters of chat and text completions, checked and converted for the engine.

An unsupported parameter is an error if it would change the output. Parameters without an effect on
the output (user, metadata, store, service_tier and the like) are ignored.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith_worker.engine.rollout import SamplingParams
from tunesmith_worker.engine.serving.protocol import MAX_TOP_LOGPROBS

from .errors import ApiError, invalid, unsupported

Body = Mapping[str, Any]  # Any: JSON values

MAX_CHOICES = 128
_MOST_STREAMS = 256
"""Maximum number of completions of a request: prompts times `n`."""
_MOST_LOGPROBS = 1 << 20
"""Maximum number of log-probs in an answer; an answer stays in memory until it is complete."""
_LEAST_TEMPERATURE = 1e-5
_IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
        *("prompt_cache_options", "prompt_cache_retention", "parallel_tool_calls", "moderation"),
    }
)
_COMMON = frozenset(
    {
        *("model", "stream", "stream_options", "n", "stop", "seed", "temperature", "top_p"),
        *("presence_penalty", "frequency_penalty", "max_tokens", "logit_bias", "logprobs"),
        "cache_salt",
    }
)
_CHAT = frozenset(
    {
        *("messages", "max_completion_tokens", "top_logprobs", "response_format"),
        *("tools", "tool_choice", "functions", "function_call", "modalities", "audio"),
        *("prediction", "reasoning_effort", "verbosity", "web_search_options"),
    }
)
_TEXT = frozenset({"prompt", "best_of", "echo", "suffix"})


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Settings that chat and text completions share."""

    model: str
    n: int
    stream: bool
    include_usage: bool
    max_tokens: int | None
    sampling: SamplingParams
    seed: int
    stop: tuple[str, ...]
    top_logprobs: int | None
    json_schema: str | None = None
    cache_salt: str = ""
    """Requests share cached keys and values of attention only if they have the same
    `cache_salt`."""
    echo: bool = False
    """True if the answer starts with the prompt."""


def chat_parameters(body: Body) -> Parameters:
    _check_names(body, _CHAT)
    for name, plain in (
        ("tools", []),
        ("functions", []),
        ("audio", None),
        ("prediction", None),
        ("web_search_options", None),
    ):
        if body.get(name) not in (None, plain):
            raise unsupported(name, "the model answers with text only")
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise unsupported("tool_choice", "the model answers with text only")
    if body.get("function_call") not in (None, "none", "auto"):
        raise unsupported("function_call", "the model answers with text only")
    if body.get("modalities") not in (None, ["text"]):
        raise unsupported("modalities", "the model answers with text only")
    for name in ("reasoning_effort", "verbosity"):
        if body.get(name) is not None:
            raise unsupported(name, "chat templates have no such setting")
    logprobs = _boolean(body, "logprobs")
    top = _integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top is not None and not logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs=true")
    limit = _integer(body, "max_completion_tokens", 1)
    if limit is None:
        limit = _integer(body, "max_tokens", 1)
    return _shared(
        body,
        max_tokens=limit,
        top_logprobs=(top or 0) if logprobs else None,
        json_schema=_json_schema(body.get("response_format")),
    )


def text_parameters(body: Body) -> Parameters:
    _check_names(body, _TEXT)
    if body.get("suffix"):
        raise unsupported("suffix", "the model only continues text")
    choices = _integer(body, "n", 1, MAX_CHOICES) or 1
    if (_integer(body, "best_of", 1) or choices) != choices:
        raise unsupported("best_of", "use `n`, and choose by log-probs")
    echo = _boolean(body, "echo")
    limit = _integer(body, "max_tokens", 0 if echo else 1)
    return _shared(
        body,
        max_tokens=16 if limit is None else limit,
        top_logprobs=_integer(body, "logprobs", 0, MAX_TOP_LOGPROBS),
        json_schema=None,
        echo=echo,
    )


def _shared(
    body: Body,
    *,
    max_tokens: int | None,
    top_logprobs: int | None,
    json_schema: str | None,
    echo: bool = False,
) -> Parameters:
    if body.get("logit_bias"):
        raise unsupported("logit_bias", "leave it out")
    options = body.get("stream_options")
    stream = _boolean(body, "stream")
    if options is not None and not stream:
        raise invalid("stream_options", "stream_options needs stream=true")
    options = options or {}
    if not isinstance(options, dict):
        raise invalid("stream_options", "stream_options must be an object")
    seed = _integer(body, "seed")
    return Parameters(
        model=_text(body, "model"),
        n=_integer(body, "n", 1, MAX_CHOICES) or 1,
        stream=stream,
        include_usage=_boolean(options, "include_usage"),
        max_tokens=max_tokens,
        sampling=SamplingParams(
            temperature=_temperature(body),
            top_p=_number(body, "top_p", 1.0, 0.0, 1.0),
            presence_penalty=_number(body, "presence_penalty", 0.0, -2.0, 2.0),
            frequency_penalty=_number(body, "frequency_penalty", 0.0, -2.0, 2.0),
        ),
        seed=secrets.randbits(64) if seed is None else seed % (1 << 64),
        stop=_stop(body.get("stop")),
        top_logprobs=top_logprobs,
        json_schema=json_schema,
        cache_salt="" if body.get("cache_salt") is None else _text(body, "cache_salt"),
        echo=echo,
    )


def _check_names(body: Body, own: frozenset[str]) -> None:
    for name in body:
        if name not in _COMMON and name not in own and name not in _IGNORED:
            raise unsupported(name, "unknown parameter")


def _text(body: Body, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(name, f"{name} must be a string")
    return value


def _boolean(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"{name} must be true or false, got {value!r}")
    return bool(value)


def _integer(body: Body, name: str, low: int | None = None, high: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(name, f"{name} must be an integer, got {value!r}")
    if low is not None and value < low:
        raise invalid(name, f"{name} must be at least {low}, got {value}")
    if high is not None and value > high:
        raise invalid(name, f"{name} must be at most {high}, got {value}")
    return value


def _temperature(body: Mapping[str, Any]) -> float:
    """Return the temperature.

    A tiny temperature would make logits infinite, so it is replaced by 0 (greedy decoding).
    """
    temperature = _number(body, "temperature", 1.0, 0.0, 2.0)
    return temperature if temperature >= _LEAST_TEMPERATURE else 0.0


def _number(body: Body, name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid(name, f"{name} must be a number, got {value!r}")
    if not low <= value <= high:
        raise invalid(name, f"{name} must be {low:g} to {high:g}, got {value:g}")
    return float(value)


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise invalid("stop", "stop must be a string or a list of strings")
    if len(texts) > 4:
        raise invalid("stop", f"stop must have at most 4 strings, got {len(texts)}")
    return tuple(texts)


def _json_schema(value: Any) -> str | None:
    if value is None or value == {"type": "text"}:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object":
        return json.dumps({"type": "object"})
    if kind != "json_schema":
        raise invalid(
            "response_format",
            "response_format.type must be 'text', 'json_object' or 'json_schema'",
        )
    schema = (value.get("json_schema") or {}).get("schema")
    if not isinstance(schema, dict):
        raise invalid("response_format", "response_format.json_schema.schema must be an object")
    return json.dumps(schema)


def check_size(prompts: int, params: Parameters) -> None:
    """Raise ApiError if a request asks for too many completions at once."""
    if prompts * params.n > _MOST_STREAMS:
        raise ApiError(
            400,
            f"{prompts} prompts with n={params.n} are {prompts * params.n:,} completions, at most "
            f"{_MOST_STREAMS} are allowed: send several requests",
            code="invalid_value",
            param="n" if params.n > 1 else "prompt",
        )


def check_logprobs(streams: int, limit: int, params: Parameters, *, chat: bool) -> None:
    """Raise ApiError if the log-probs of the longest answer would fill the memory.

    `limit`: maximum tokens of each of the `streams` completions, including an echoed prompt.
    `chat`: True for a chat completion. The error then names the parameters of chat completions.
    """
    names = ("max_completion_tokens", "top_logprobs") if chat else ("max_tokens", "logprobs")
    top = params.top_logprobs
    if top is not None and streams * limit * (1 + top) > _MOST_LOGPROBS:
        raise ApiError(
            400,
            f"{streams} completions of up to {limit:,} tokens with {top} top "
            f"log-probs are too many; at most {_MOST_LOGPROBS:,} log-probs are allowed: lower "
            f"{names[0]}, n or {names[1]}",
            code="invalid_value",
            param=names[0],
        )


def check_length(prompt_tokens: int, params: Parameters, context: int | None, param: str) -> int:
    """Return the maximum number of completion tokens. Raises ApiError if the prompt is too long."""
    if context is None:
        return 1024 if params.max_tokens is None else params.max_tokens
    left = context - prompt_tokens
    if left < (0 if params.max_tokens == 0 else 1):
        raise ApiError(
            400,
            f"the prompt has {prompt_tokens} tokens, but the model's context has {context}: "
            "shorten the prompt",
            code="context_length_exceeded",
            param=param,
        )
    return left if params.max_tokens is None else min(params.max_tokens, left)
