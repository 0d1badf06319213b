"""A wrong field has one error that lists all allowed values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tunesmith_schema import JobCreate, Recipe
from tunesmith_schema.field_errors import field_errors


def said(recipe: dict[str, Any]) -> list[tuple[str, str]]:  # Any: JSON
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate(recipe)
    return [(one.name, one.message) for one in field_errors(caught.value.errors())]


@pytest.mark.parametrize(
    ("recipe", "name", "allowed"),
    [
        ({"packing": "maybe"}, "packing", ["must be true or false, or 'auto'"]),
        (
            {"lora": {"target_modules": "lm_head"}},
            "lora.target_modules",
            ["'auto'", "'all-linear'", "a list"],
        ),
        ({"precision": "fp8"}, "precision", ["'fp32'", "'bf16_sr8'", "'auto'"]),
        ({"precision": "fp16"}, "precision", ["fp16 is not available"]),
        ({"gradient_checkpointing": 7}, "gradient_checkpointing", ["true or false", "'offload'"]),
        ({"warmup_steps": -1}, "warmup_steps", ["must be at least 0, or 'auto'"]),
        (
            {"lora": {"target_modules": ["q_proj", 3]}},
            "lora.target_modules",
            ["'auto'", "or: item 1: must be a string"],
        ),
        ({"add_tokens": ["a", 1]}, "add_tokens.1", ["must be a string"]),
    ],
)
def test_a_union_is_one_error(recipe: dict[str, Any], name: str, allowed: list[str]) -> None:
    [(field, message)] = said(recipe)
    assert field == name
    assert all(words in message for words in allowed), message


def test_errors_are_counted_by_field() -> None:
    assert [name for name, _ in said({"warmup_steps": -1, "max_steps": 0})] == [
        "warmup_steps",
        "max_steps",
    ]


def test_a_callers_own_key_is_kept() -> None:
    body = {"model": "m", "training_file": "f", "metadata": {"of-mine": 3}}
    with pytest.raises(ValidationError) as caught:
        JobCreate.model_validate(body)
    assert [one.name for one in field_errors(caught.value.errors())] == ["metadata.of-mine"]
