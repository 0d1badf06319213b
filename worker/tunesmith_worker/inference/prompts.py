"""Conversion of prompts to token ids. Chat templates are applied exactly as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from .errors import ApiError, invalid, unsupported

Untyped = Any  # Any: transformers is not typed

_FORMS = "prompt must be a string, a list of strings, or one or more lists of token ids"

_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, KeyError, IndexError, ValueError)
"""Exceptions that a chat template may raise, by `raise_exception` or on unexpected values."""


def text_size(body: Mapping[str, Any]) -> int:
    """Return the approximate number of characters to tokenise for a request body."""
    return _size(body.get("messages")) + _size(body.get("prompt"))


def _size(value: Any) -> int:
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return len(value)  # token ids, which may be half a million
        return len(value) + sum(map(_size, value))
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, str) else 0


def chat_ids(tokenizer: Untyped, messages: Any) -> tuple[int, ...]:
    """Return the token ids of messages with the generation prompt. Raises ApiError."""
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "messages must be a list with at least one message")
    if tokenizer.chat_template is None:
        raise ApiError(
            400,
            "the model has no chat template: send its prompt to /v1/completions",
            code="template_missing",
            param="model",
        )
    turns = [_message(i, message) for i, message in enumerate(messages)]
    try:
        text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except _TEMPLATE_ERRORS as error:
        roles = ", ".join(turn["role"] for turn in turns[:8])
        raise invalid(
            "messages",
            f"the model's chat template rejects the messages (roles {roles}): {error}",
        ) from error
    return _encode(tokenizer, text, special=False)


def _message(number: int, message: Any) -> dict[str, Any]:
    param = f"messages[{number}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid(param, f"{param} must be an object with a role")
    turn = {key: value for key, value in message.items() if value is not None}
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(param, part) for part in content)
    if content is not None and not isinstance(content, str):
        raise invalid(param, f"{param}.content must be a string or a list of text parts")
    # Trained rows have the content key even if its value is null.
    return {**turn, "content": content}


def _part(param: str, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    raise unsupported(param, f"content of type {kind!r}; the model reads text only")


def text_ids(tokenizer: Untyped, prompt: Any, vocabulary: int) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt.

    `prompt`: a string, a list of token ids, or a list of strings or of lists of token ids.
    """
    if prompt is None:
        raise invalid("prompt", _FORMS)
    if isinstance(prompt, str):
        return [_encode(tokenizer, prompt, special=True)]
    if not isinstance(prompt, list) or not prompt:
        raise invalid("prompt", _FORMS)
    if all(isinstance(text, str) for text in prompt):
        return [_encode(tokenizer, text, special=True) for text in prompt]
    lists = [prompt] if all(_is_id(one) for one in prompt) else prompt
    for ids in lists:
        if not isinstance(ids, list) or not ids or not all(_is_id(one) for one in ids):
            raise invalid("prompt", _FORMS)
        if max(ids) >= vocabulary:
            raise invalid("prompt", f"token ids must be below {vocabulary}, got {max(ids)}")
    return [tuple(ids) for ids in lists]


def texts_of(tokenizer: Untyped, prompt: Any, prompts: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the text of each prompt.

    `prompt`: value in the request. `prompts`: token ids that `text_ids` returned for `prompt`."""
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(text, str) for text in prompt):
        return list(prompt)
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _encode(tokenizer: Untyped, text: str, *, special: bool) -> tuple[int, ...]:
    ids = tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
    if not ids:
        raise invalid("prompt", "the prompt is empty")
    return tuple(ids)
