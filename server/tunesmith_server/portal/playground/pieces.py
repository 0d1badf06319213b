"""Pieces of an answer for the page; if the server sends log-probs, each piece is one token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith_server.portal.text import clipped, visible

Piece = dict[str, Any]
"""Piece as a JSON object. `text` is the text of the piece. `shown` is present if the text has
invisible characters. With log-probs, `tone` is from 0 (unlikely) to 4 (nearly certain), and
`detail` has the probabilities of the token and of its alternatives."""
_TONES = (0.05, 0.2, 0.5, 0.9)
"""Probabilities from which a token gets the tone 1, 2, 3 or 4 (see `Piece`)."""
_LONGEST_TOKEN = 40


class Pieces:
    """Splitter of one answer's text into pieces.

    Tokens that contain only a part of a character wait until the character is complete.
    """

    def __init__(self) -> None:
        self._waiting: list[Mapping[str, Any]] = []

    def of(self, content: str, tokens: Sequence[Mapping[str, Any]]) -> list[Piece]:
        """Return the pieces of the next part of the answer. `tokens`: log-probs of this part, in
        OpenAI's format."""
        tokens = [*self._waiting, *tokens]
        if not content:
            self._waiting = tokens
            return []
        self._waiting = []
        texts = [str(token.get("token", "")) for token in tokens]
        if "".join(texts) == content:
            return [_piece(text, [token]) for text, token in zip(texts, tokens, strict=True)]
        return [_piece(content, tokens)]


def _piece(content: str, tokens: Sequence[Mapping[str, Any]]) -> Piece:
    piece: Piece = {"text": content}
    if (shown := visible(content)) != content:
        piece["shown"] = shown
    chances = [_probability(token) for token in tokens]
    if chances:
        least = min(chances)
        piece["tone"] = sum(least >= start for start in _TONES)
        piece["detail"] = "; ".join(map(_detail, tokens))
    return piece


def _probability(token: Mapping[str, Any]) -> float:
    value = token.get("logprob")
    return math.exp(min(0.0, value)) if isinstance(value, int | float) else 0.0


def _detail(token: Mapping[str, Any]) -> str:
    others = token.get("top_logprobs") or []
    named = {_named(token): _probability(token)}
    for other in others if isinstance(others, list) else []:
        named.setdefault(_named(other), _probability(other))
    return ", ".join(f"{name} {_percent(chance)}" for name, chance in named.items())


def _named(token: Mapping[str, Any]) -> str:
    text = str(token.get("token", "")).replace("\n", "↵").replace("\t", "⇥")
    return f"“{clipped(visible(text), _LONGEST_TOKEN)}”"


def _percent(chance: float) -> str:
    return f"{chance * 100:.0f} %" if chance >= 0.1 else f"{chance * 100:.2g} %"
