"""Detect the end of a completion: a stop token, a stop text or the length limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers.decoders import DecodeStream

from .protocol import FinishReason, Request, UnusableRequest

Untyped = Any  # Any: transformers and tokenizers are not typed


def eos_token_ids(model: Untyped, tokenizer: Untyped) -> frozenset[int]:
    """Return all end-of-turn tokens from the model's generation config and the tokenizer."""
    eos = getattr(model.generation_config, "eos_token_id", None)
    ids: Iterable[int | None] = eos if isinstance(eos, list | tuple) else [eos]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if i is not None)


class StopChecker:
    """Stop conditions of one completion."""

    def __init__(self, request: Request, tokenizer: Untyped) -> None:
        """Raises UnusableRequest if the request has stop texts and `tokenizer` has no backend from
        the tokenizers library."""
        self._request = request
        self._count = 0
        self._text: _StopTextMatcher | None = None
        if request.stop:
            backend = getattr(tokenizer, "backend_tokenizer", None)
            if backend is None:
                raise UnusableRequest(
                    "stop texts need a tokenizer of the tokenizers library, which can decode token "
                    "by token; use stop_token_ids"
                )
            self._text = _StopTextMatcher(request.stop, backend)

    def check(self, token: int) -> tuple[FinishReason, int | str | None] | None:
        """Add the next token.

        If the token ends the completion, return the finish reason, and the stop token or stop text
        that ended the completion (None at the length limit).
        """
        self._count += 1
        if token in self._request.stop_token_ids:
            return FinishReason.STOP, token
        text = self._text.match(token) if self._text is not None else None
        if text is not None:
            return FinishReason.STOP, text
        if self._count >= self._request.max_tokens:
            return FinishReason.LENGTH, None
        return None


class _StopTextMatcher:
    def __init__(self, stops: tuple[str, ...], backend: Untyped) -> None:
        self._stops, self._backend = stops, backend
        self._stream = DecodeStream(skip_special_tokens=False)
        self._keep = max(map(len, stops)) - 1
        self._tail = ""

    def match(self, token: int) -> str | None:
        new_text = self._stream.step(self._backend, token)
        if not new_text:
            return None
        text = self._tail + new_text
        matches = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        self._tail = text[-self._keep :] if self._keep else ""
        return min(matches)[1] if matches else None
