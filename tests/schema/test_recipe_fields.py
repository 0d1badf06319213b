"""Descriptions of recipe fields agree with what the recipe accepts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tunesmith_schema import Recipe, RecipeField, recipe_fields

FIELDS = {field.id: field for field in recipe_fields()}


def accepts(name: str, value: Any) -> bool:
    """Return True if the recipe accepts this value of a top-level field as such."""
    try:
        Recipe.model_validate({name.removeprefix("recipe."): value})
    except ValidationError as error:
        return all(item["loc"][:1] != (name.removeprefix("recipe."),) for item in error.errors())
    return True


def test_fields_have_type_limits_default_and_meaning() -> None:
    assert len(FIELDS) > 60
    assert all(field.types or field.choices for field in FIELDS.values())
    assert [field.id for field in FIELDS.values() if not field.description] == []
    rate = FIELDS["recipe.learning_rate"]
    assert (rate.types, rate.choices, rate.default) == (["number"], ["auto"], "auto")
    assert (rate.minimum, rate.minimum_allowed, rate.maximum, rate.maximum_allowed) == (
        0, False, 1, True,
    )  # fmt: skip
    rank = FIELDS["recipe.lora.r"]
    assert (rank.types, rank.default, rank.values) == (["integer"], 32, "integer ≥ 1, ≤ 512")
    assert FIELDS["recipe.grpo"].types == ["object"]
    assert FIELDS["recipe.add_tokens"].types == ["array"]


def numbers() -> list[RecipeField]:
    top = [field for field in FIELDS.values() if field.id.count(".") == 1]
    return [field for field in top if {"integer", "number"} & {*field.types}]


@pytest.mark.parametrize("field", numbers(), ids=lambda field: field.id)
def test_limits_are_those_of_the_recipe(field: RecipeField) -> None:
    assert field.minimum is not None
    assert field.maximum is not None
    assert accepts(field.id, field.minimum) == field.minimum_allowed
    assert accepts(field.id, field.maximum) == field.maximum_allowed
    assert not accepts(field.id, field.minimum - 1)
    assert not accepts(field.id, field.maximum + 1)
