"""Text of a completion during generation: only complete characters, and no part of a stop text."""

from __future__ import annotations

from typing import Any

Untyped = Any  # Any: tokenizers is not typed

_REPLACEMENT = "\ufffd"
_MAX_PENDING = 16
"""Number of tokens after which an incomplete character counts as invalid bytes."""


class TextStream:
    """Decodes the tokens of one completion as they arrive. Special tokens give no text."""

    def __init__(self, backend: Untyped, stops: tuple[str, ...]) -> None:
        """`backend`: tokenizer of the tokenizers library."""
        self._backend, self._stops = backend, stops
        self._ids: list[int] = []
        self._from, self._read = 0, 0
        """Index of the first token that decoding needs as context, and index of the first token
        that is not yet decoded."""
        self._held = ""
        """Decoded text that may be the start of a stop text."""
        self.stopped = False
        """True after a stop text was found."""

    def add(self, token: int) -> str:
        """Add a token; return the text that can be sent now."""
        self._ids.append(token)
        return self._send(self._decode(final=False), final=False)

    def finish(self) -> str:
        """Return the rest of the text after the last token."""
        return "" if self.stopped else self._send(self._decode(final=True), final=True)

    def _decode(self, *, final: bool) -> str:
        """Return the text of the tokens that are not yet decoded; empty while the last character
        may still be completed.

        Tokens are decoded together with the tokens before them, because a tokenizer may drop the
        first space of a text."""
        if self._read == len(self._ids):
            return ""
        before = self._backend.decode(self._ids[self._from : self._read], skip_special_tokens=True)
        text = self._backend.decode(self._ids[self._from :], skip_special_tokens=True)
        incomplete = text.endswith(_REPLACEMENT)
        if not final and incomplete and len(self._ids) - self._read < _MAX_PENDING:
            return ""
        self._from, self._read = self._read, len(self._ids)
        return str(text[len(before) :])

    def _send(self, new: str, *, final: bool) -> str:
        if not self._stops:
            return new
        text = self._held + new
        found = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = 0 if final else max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is also a prefix of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
