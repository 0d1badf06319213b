"""The form of the playground: conversion of its texts to a request and to an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from pydantic import ValidationError

from tunesmith_schema import ChatRequest, ErrorCode
from tunesmith_server.core.errors import BadRequest, validation_bodies

Texts = Mapping[str, str]
HERE = "/portal/playground"
MODELS = ("model1", "model2", "model3", "model4")
DEFAULTS = {
    "system": "", "user": "", "sampling": "greedy", "temperature": "0.7", "top_p": "1",
    "max_tokens": "256", "seed": "", "logprobs": "on", "marks": "",
}  # fmt: skip
"""Texts of the fields of a new form, without the fields of the models."""
ASKED = "asked"
"""Field of the form with the first prompt of the conversation. The field is empty until the prompt
is sent."""
NAMES = (*MODELS, *DEFAULTS, ASKED)
TOP_LOGPROBS = 5
"""Number of alternatives that are requested for each token."""
LONGEST_IN_ADDRESS = 400
"""Maximum length, in characters, of a prompt or a system message in the address."""


def chosen(texts: Texts) -> list[str]:
    """Return the names of the chosen models."""
    return [name for key in MODELS if (name := texts.get(key, "").strip())]


def messages_of(texts: Texts) -> list[dict[str, str]]:
    """Return the messages of a new conversation."""
    roles = ("system", "user")
    return [{"role": role, "content": texts[role]} for role in roles if texts.get(role, "").strip()]


def parameters(texts: Texts) -> dict[str, Any]:  # Any: JSON
    """Return the parameters of the request, without model and messages. A text that is not a number
    stays unchanged, so that the check of the request reports it."""
    is_greedy = texts.get("sampling") != "sampled"
    found: dict[str, Any] = {}
    if tokens := texts.get("max_tokens", "").strip():
        found["max_tokens"] = _number(tokens)
    if is_greedy:
        return found | {"temperature": 0}
    for name in ("temperature", "top_p", "seed"):
        if text := texts.get(name, "").strip():
            found[name] = _number(text)
    return found


def request_of(texts: Texts, model: str, messages: Sequence[Any]) -> ChatRequest:
    """Return the request to `model`. Raises BadRequest if a field is not valid."""
    body = {"model": model, "messages": messages, **parameters(texts)}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if texts.get("logprobs"):
        body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    try:
        return ChatRequest.model_validate(body)
    except ValidationError as error:
        found = validation_bodies([dict(item) for item in error.errors(include_url=False)])[0]
        raise BadRequest(
            ErrorCode(found.code or ErrorCode.INVALID_REQUEST),
            f"{found.param}: {found.message}"[:1000],
            param=found.param,
            hint=found.hint,
        ) from None


def address(texts: Texts) -> str:
    """Return the address of the page with this form. Texts longer than LONGEST_IN_ADDRESS are left
    out."""
    pairs = [("model", name) for name in chosen(texts)]
    for name, default in DEFAULTS.items():
        text = texts.get(name, "")
        if text != default and len(text) <= LONGEST_IN_ADDRESS:
            pairs.append((name, text))
    return f"{HERE}?{urlencode(pairs)}" if pairs else HERE


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 20 else text
        except ValueError:
            continue
    return text
