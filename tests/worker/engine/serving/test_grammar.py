"""JSON schemas of chat requests: each is compiled once, however many choices a request has."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
import torch

from tests.tiny_model import make_tiny_tokenizer
from tunesmith_worker.engine.serving.grammar import Grammars, Matcher

SCHEMA = json.dumps({"enum": ["a", "b"]})


@pytest.fixture
def tokenizer() -> Any:
    return make_tiny_tokenizer()


def allowed(matcher: Matcher, size: int) -> list[int]:
    return (~matcher.mask(size, torch.device("cpu"))).nonzero().flatten().tolist()


def test_choices_share_one_compilation_and_no_state(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    compile_ = llguidance.LLMatcher.grammar_from_json_schema

    def count(schema: str, **options: Any) -> Any:
        compiled.append(schema)
        return compile_(schema, **options)

    monkeypatch.setattr(llguidance.LLMatcher, "grammar_from_json_schema", count)
    size = len(tokenizer)
    grammars = Grammars(tokenizer, size, frozenset({tokenizer.eos_token_id}))
    one, other = grammars.matcher(SCHEMA), grammars.matcher(SCHEMA)
    first = allowed(one, size)
    assert first
    one.add(first[0])
    assert allowed(one, size) != first
    assert allowed(other, size) == first
    assert allowed(grammars.matcher(SCHEMA), size) == first
    assert compiled == [SCHEMA]
    grammars.matcher(json.dumps({"type": "integer"}))
    assert len(compiled) == 2
