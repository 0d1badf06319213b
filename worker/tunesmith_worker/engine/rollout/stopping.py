"""When a completion ends: a stop token, a stop text (which may begin in one token and end in
another), or its length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers.decoders import DecodeStream

from .protocol import FinishReason, Request, UnusableRequest

Untyped = Any  # Any: transformers and tokenizers are not typed


def eos_token_ids(model: Untyped, tokenizer: Untyped) -> frozenset[int]:
    """Every token that ends a turn, by the model's generation config or by the tokenizer: either
    may lack one that the other has."""
    given = getattr(model.generation_config, "eos_token_id", None)
    listed: Iterable[int | None] = given if isinstance(given, list | tuple) else [given]
    return frozenset(one for one in (*listed, tokenizer.eos_token_id) if one is not None)


class StopChecker:
    """Of one completion."""

    def __init__(self, request: Request, tokenizer: Untyped) -> None:
        """`tokenizer`: one with a backend of the tokenizers library where the request has stop
        texts. Raises UnusableRequest without one."""
        self._request = request
        self._count = 0
        self._text: _StopTextMatcher | None = None
        if request.stop:
            backend = getattr(tokenizer, "backend_tokenizer", None)
            if backend is None:
                raise UnusableRequest(
                    "stop texts need a tokenizer of the tokenizers library, to read text token by "
                    "token; use stop_token_ids"
                )
            self._text = _StopTextMatcher(request.stop, backend)

    def check(self, token: int) -> tuple[FinishReason, int | str | None] | None:
        """Whether the completion ends with `token`, the next of its tokens, and by what."""
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
        """The stop text that is complete now; of several the one that begins first. A character of
        several tokens is read when its last one has come."""
        piece = self._stream.step(self._backend, token)
        if not piece:
            return None
        text = self._tail + piece
        found = [(place, one) for one in self._stops if (place := text.find(one)) >= 0]
        self._tail = text[-self._keep :] if self._keep else ""
        return min(found)[1] if found else None
