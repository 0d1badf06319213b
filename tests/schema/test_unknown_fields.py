"""A field that does not exist is refused, and the nearest one that does is offered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

import tunesmith_schema as schema
from tunesmith_schema import JobCreate, Recipe, Request, Response

REQUESTS = [
    model
    for model in (getattr(schema, name) for name in schema.__all__)
    if isinstance(model, type) and issubclass(model, Request) and model is not Request
]


@pytest.mark.parametrize(
    ("recipe", "advice"),
    [
        ({"learing_rate": 1}, "did you mean 'learning_rate'?"),
        ({"max_seq_len": 1}, "did you mean 'max_seq_length'?"),
        ({"epochs": 1}, "did you mean 'num_train_epochs'?"),
        ({"batch_size": 1}, "did you mean 'per_device_train_batch_size'?"),
        ({"lora": {"rank": 1}}, "did you mean 'r'?"),
        ({"lora": {"alpha": 1}}, "did you mean 'lora_alpha'?"),
        ({"lora": {"target_module": []}}, "did you mean 'target_modules'?"),
        ({"zzz": 1}, "valid fields: tuning, lora"),
    ],
)
def test_the_nearest_field_is_offered(recipe: dict[str, Any], advice: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate(recipe)
    assert advice in str(caught.value)


@pytest.mark.parametrize("model", REQUESTS, ids=lambda model: model.__name__)
def test_every_request_refuses_what_it_does_not_know(model: type[Request]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"no_such_field": 1})
    assert caught.value.errors()[0]["type"] == "unknown_field"


@pytest.mark.parametrize("key", ["", "\ud800", "x" * 10_000, "a\0b", "'", "{field}"])
def test_any_key_can_be_refused_in_words(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({key: 1})
    message = caught.value.errors()[0]["msg"]
    assert message.startswith("unknown field '")
    assert len(message.encode()) < 1000


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValidationError):
        Recipe.model_validate({1: 1})


def test_the_refusal_also_comes_from_json() -> None:
    with pytest.raises(ValidationError, match="did you mean 'training_file'"):
        JobCreate.model_validate_json(json.dumps({"model": "m", "training_fil": "f"}))


def test_an_answer_of_a_newer_server_is_read() -> None:
    class Answer(Response):
        known: int

    assert Answer.model_validate({"known": 1, "new": 2}).known == 1
