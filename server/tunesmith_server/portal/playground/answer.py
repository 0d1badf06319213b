"""Answer of one model. The module converts the events of the inference server to what the model's
column shows: pieces of text, and numbers such as tokens per second."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tunesmith_schema import ErrorCode, ErrorEnvelope
from tunesmith_server.core.errors import EngineFailed, ServiceError
from tunesmith_server.portal import view
from tunesmith_server.portal.text import visible

from .pieces import Piece, Pieces

_FINISHES = {"length": "cut at the maximum number of tokens", "stop": "ended by itself"}


@dataclass
class Answer:
    """Answer that is being received."""

    texts: list[str] = field(default_factory=list)
    """Texts of all pieces so far."""
    started: float = field(default_factory=time.monotonic)
    _first: float | None = None
    _last: float = 0.0
    _pieces: Pieces = field(default_factory=Pieces)
    _finish: str = ""
    _usage: dict[str, Any] = field(default_factory=dict)  # Any: JSON

    def read(self, events: bytes) -> list[Piece]:
        """Read complete server-sent events. Return the new pieces. Raises ServiceError if the
        server sent an error."""
        found: list[Piece] = []
        for document in _documents(events):
            if "error" in document:
                raise _failure(document)
            self._usage = document.get("usage") or self._usage
            for choice in document.get("choices") or []:
                self._finish = choice.get("finish_reason") or self._finish
                tokens = (choice.get("logprobs") or {}).get("content") or []
                content = (choice.get("delta") or {}).get("content") or ""
                found += self._pieces.of(content, tokens)
        if found:
            self._last = time.monotonic()
            self._first = self._first or self._last
            self.texts += [piece["text"] for piece in found]
        return found

    def figures(self) -> str:
        """Return a text with the time to the first token, the tokens per second and the counts of
        tokens. Figures that are not known yet are left out."""
        if self._first is None:
            return "no text" + (f", {_FINISHES[self._finish]}" if self._finish in _FINISHES else "")
        parts = [f"{view.duration(self._first - self.started)} to the first token"]
        made = self._usage.get("completion_tokens")
        if isinstance(made, int):
            seconds = self._last - self._first
            if made > 1 and seconds > 0:
                parts.append(f"{view.number((made - 1) / seconds, 3)} tokens/s")
            parts.append(f"{view.count(made)} token{'' if made == 1 else 's'}")
        if isinstance(asked := self._usage.get("prompt_tokens"), int):
            parts.append(f"{view.count(asked)} in the prompt")
        return ", ".join(
            [*parts, *filter(None, [_FINISHES.get(self._finish, visible(self._finish[:40]))])]
        )


def _documents(events: bytes) -> Iterator[dict[str, Any]]:
    for line in events.splitlines():
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            try:
                document = json.loads(data)
            except ValueError:
                continue  # not an event of OpenAI's format
            if isinstance(document, dict):
                yield document


def _failure(document: dict[str, Any]) -> ServiceError:
    try:
        error = ErrorEnvelope.model_validate(document).error
    except ValidationError:
        error = None
    known = {str(code): code for code in ErrorCode}
    return EngineFailed(
        known.get(str(error.code), ErrorCode.INTERNAL) if error else ErrorCode.INTERNAL,
        f"the answer broke off: {error.message[:1000] if error else 'no reason given'}",
        hint=(error.hint if error else None) or "send the prompt again",
    )
