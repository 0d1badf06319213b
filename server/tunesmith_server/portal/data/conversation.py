"""Rows of a data set in any format as conversations, with other fields as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_TURNS = 20
"""Maximum number of turns that are shown per row."""
MAX_TEXT = 4000
"""Maximum number of characters that are shown per turn."""
_LISTS = {"messages": ("role", "content"), "conversations": ("from", "value")}
"""Columns that contain lists of messages. The values are the two keys of a message: the key of its
role and the key of its text."""
_TEXTS = {
    "prompt": "user",
    "question": "user",
    "instruction": "user",
    "input": "user",
    "completion": "assistant",
    "answer": "assistant",
    "output": "assistant",
    "text": "text",
}
"""Columns that contain text, each with the chat role of its text."""
_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Text of one chat role, or another field of the row."""

    role: str
    text: str
    more: int = 0
    """Number of characters that are left out."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A row as turns."""

    turns: list[Turn]
    left_out: int = 0
    """Number of turns that are left out."""


def of_row(data: Any) -> Conversation:  # Any: JSON
    """Return the turns of a row. A row in an unknown format is one turn with the row's JSON."""
    if not isinstance(data, dict):
        return Conversation(turns=[_turn("value", data)])
    turns = list(_turns(data))
    return Conversation(turns=turns[:MAX_TURNS], left_out=max(0, len(turns) - MAX_TURNS))


def _turns(data: Mapping[str, Any]) -> Iterator[Turn]:
    for name, value in data.items():
        if isinstance(value, list) and name in (*_LISTS, "prompt", "completion"):
            for message in value:
                yield _message(message)
        elif value not in (None, ""):
            yield _turn(_TEXTS.get(name, name), value)


def _message(message: Any) -> Turn:  # Any: JSON
    for role, text in _LISTS.values():
        speaker = message.get(role) if isinstance(message, dict) else None
        if isinstance(speaker, str):
            rest = {k: v for k, v in message.items() if k not in (role, text) and v is not None}
            said = _said(message.get(text), rest)
            return _turn(_ROLES.get(speaker, speaker), said)
    return _turn("message", message)


def _said(said: Any, rest: Mapping[str, Any]) -> str:  # Any: JSON
    """Return the text of a message, followed by its other fields, such as `tool_calls`."""
    text = said if isinstance(said, str) else "" if said is None else _json(said)
    return f"{text}\n{_json(rest)}".strip() if rest else text


def _turn(role: str, value: Any) -> Turn:  # Any: JSON
    text = value if isinstance(value, str) else _json(value)
    return Turn(role=role[:60], text=text[:MAX_TEXT], more=max(0, len(text) - MAX_TEXT))


def _json(value: Any) -> str:  # Any: JSON
    return json.dumps(value, ensure_ascii=False, indent=2)
