"""Texts and bytes of single tokens, for the log-probs in answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from tunesmith_worker.engine.serving.protocol import TokenLogprob, TokenScores

Untyped = Any  # Any: transformers is not typed

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Echoed:
    """Prompt at the start of an answer."""

    first_token: int
    text: str


class TokenText:
    """Token texts of one tokenizer."""

    def __init__(self, tokenizer: Untyped) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._is_byte_level = "ByteLevel" in str(type(tokenizer.backend_tokenizer.decoder)) or (
            "ByteLevel" in tokenizer.backend_tokenizer.to_str()
        )
        self._byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
        self._known: dict[int, tuple[str, list[int]]] = {}

    def get(self, token: int) -> tuple[str, list[int]]:
        """Return the token's text and its UTF-8 bytes. An incomplete character becomes U+FFFD."""
        if token not in self._known:
            raw = self._bytes(token)
            self._known[token] = raw.decode("utf-8", errors="replace"), list(raw)
        return self._known[token]

    def _bytes(self, token: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        if token not in self._special:
            if self._is_byte_level and all(char in self._byte_of for char in piece):
                return bytes(self._byte_of[char] for char in piece)
            if match := _BYTE.fullmatch(piece):
                return bytes([int(match[1], 16)])
        return str(piece).replace("\u2581", " ").encode()

    def chat(
        self, scores: Sequence[TokenScores], offset: int, echoed: Echoed | None = None
    ) -> dict[str, Any]:
        """Return `logprobs` of a chat choice."""
        content = [
            {**self._entry(one.sampled), "top_logprobs": [self._entry(top) for top in one.top]}
            for one in scores
        ]
        return {"content": content, "refusal": None}

    def text(
        self, scores: Sequence[TokenScores], offset: int, echoed: Echoed | None = None
    ) -> dict[str, Any]:
        """Return `logprobs` of a text choice.

        `offset`: position of the first token in the choice's text. `echoed`: prompt at the start of
        the text; the first token of the prompt has no score."""
        texts, offsets = [], []
        if echoed is not None:
            first = self.get(echoed.first_token)[0]
            texts, offsets = [first], [offset]
            # A text prompt lacks the start token that the tokenizer added.
            offset += len(first) if echoed.text.startswith(first) else 0
        for one in scores:
            texts.append(self.get(one.sampled.token_id)[0])
            offsets.append(offset)
            offset += len(texts[-1])
        unknown = [None] * (len(texts) - len(scores))
        return {
            "tokens": texts,
            "token_logprobs": [*unknown, *(one.sampled.logprob for one in scores)],
            "top_logprobs": [
                *unknown,
                *({self.get(top.token_id)[0]: top.logprob for top in one.top} for one in scores),
            ],
            "text_offset": offsets,
        }

    def _entry(self, one: TokenLogprob) -> dict[str, Any]:
        text, raw = self.get(one.token_id)
        return {"token": text, "logprob": one.logprob, "bytes": raw}
