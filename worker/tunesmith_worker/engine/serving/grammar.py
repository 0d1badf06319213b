"""JSON output: llguidance masks all tokens that would break the JSON schema."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from .protocol import UnusableGrammar, UnusableOutput

Untyped = Any  # Any: transformers and llguidance

_COMPACT: dict[str, Any] = {"whitespace_flexible": False}
"""Options that forbid line breaks and indentation, because a model could repeat these forever."""


class Grammars:
    """Compiles JSON schemas for one tokenizer."""

    def __init__(self, tokenizer: Untyped, vocabulary: int, eos_ids: frozenset[int]) -> None:
        self._tokenizer, self._vocabulary, self._eos = tokenizer, vocabulary, sorted(eos_ids)
        self._guide: Untyped = None
        self._compiled: tuple[str, Untyped] | None = None
        """The schema that was compiled last, and its matcher before the first token."""

    def matcher(self, schema: str) -> Matcher:
        """Compile a JSON schema.

        Raises UnusableGrammar. Compilation takes up to half a second, so the last compiled schema
        is kept. All choices of a request have the same schema, so it is compiled only once per
        request.
        """
        compiled = self._compiled
        if compiled is None or compiled[0] != schema:
            compiled = self._compiled = (schema, self._compile(schema))
        return Matcher(compiled[1].deep_copy(), self._vocabulary)

    def _compile(self, schema: str) -> Untyped:
        import llguidance.hf  # slow import; most requests need no grammar

        if self._guide is None:
            size = max(self._vocabulary, len(self._tokenizer))
            self._guide = llguidance.hf.from_tokenizer(
                self._tokenizer, n_vocab=size, eos_token=self._eos or None
            )
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=_COMPACT)
        except ValueError as error:
            raise UnusableGrammar(f"the JSON schema cannot be used: {error}") from error
        matcher = llguidance.LLMatcher(self._guide, grammar, log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().splitlines()[0]
            raise UnusableGrammar(f"the JSON schema cannot be used: {reason}")
        return matcher


class Matcher:
    """Checks which tokens may follow the JSON text of one completion."""

    def __init__(self, matcher: Untyped, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def mask(self, size: int, device: torch.device) -> torch.Tensor:
        """Return a bool mask with an entry for each of `size` token ids: True if the token is not
        allowed. Raises UnusableOutput."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: min(size, self._vocabulary)]
        self._check()
        if not allowed.any():
            raise UnusableOutput("no token continues the JSON text within its schema")
        mask = np.ones(size, dtype=bool)
        mask[: len(allowed)] = allowed == 0
        return torch.from_numpy(mask).to(device)

    def add(self, token: int) -> bool:
        """Add a sampled token; return True if the JSON text is complete. Raises UnusableOutput."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().splitlines()[0]
            raise UnusableOutput(f"the completion cannot continue within the JSON schema: {reason}")


def any_object() -> str:
    """Return the JSON schema of `response_format={"type": "json_object"}`."""
    return json.dumps({"type": "object"})
