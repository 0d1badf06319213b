"""Descriptions of all recipe fields, made from the schema, for the docs and for programs that show
a form."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from .base import Response
from .early_stopping import EarlyStoppingRecipe
from .grpo import GRPORecipe, RolloutRecipe
from .recipe import LoraRecipe, Recipe

RECIPE_OBJECTS: dict[str, type[BaseModel]] = {
    "recipe": Recipe,
    "recipe.lora": LoraRecipe,
    "recipe.early_stopping": EarlyStoppingRecipe,
    "recipe.grpo": GRPORecipe,
    "recipe.rollout": RolloutRecipe,
}
"""Recipe objects by dotted name."""
_LIMITS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
}


class RecipeField(Response):
    """A field of the recipe."""

    id: str
    """Dotted name, such as `recipe.lora.r`."""
    object: Literal["recipe.field"] = "recipe.field"
    types: list[str]
    """JSON types of the value: `boolean`, `integer`, `number`, `string`, `array` or `object`."""
    choices: list[str] = Field(default_factory=list)
    """Allowed strings. If `types` contains `string`, the field also accepts strings that are not in
    this list."""
    minimum: float | None = None
    """Lower limit of a number; null if there is none."""
    minimum_allowed: bool = True
    """False if a number must be above `minimum`."""
    maximum: float | None = None
    """Upper limit of a number; null if there is none."""
    maximum_allowed: bool = True
    """False if a number must be below `maximum`."""
    default: Any = None  # Any: JSON
    """Value of the field if the request does not set it."""
    values: str
    """Allowed values in words."""
    description: str
    """Meaning of the field."""


@functools.cache
def recipe_fields() -> tuple[RecipeField, ...]:
    """Return the fields of the recipe and of its nested objects, such as `recipe.lora`."""
    return tuple(
        _field(f"{name}.{key}", model.model_fields[key], schema)
        for name, model in RECIPE_OBJECTS.items()
        for key, schema in model.model_json_schema()["properties"].items()
    )


def _field(name: str, field: FieldInfo, schema: dict[str, Any]) -> RecipeField:
    members = list(_members(schema))
    types = {_type(member) for member in members if not _choices(member)}
    limits = {key: member[key] for member in members for key in _LIMITS if key in member}
    return RecipeField(
        id=name,
        types=sorted(types),
        choices=[choice for member in members for choice in _choices(member)],
        minimum=limits.get("minimum", limits.get("exclusiveMinimum")),
        minimum_allowed="exclusiveMinimum" not in limits,
        maximum=limits.get("maximum", limits.get("exclusiveMaximum")),
        maximum_allowed="exclusiveMaximum" not in limits,
        default=field.get_default(call_default_factory=True, validated_data={}),
        values=allowed_values(schema),
        description=(field.description or "").replace("\n", " "),
    )


def _members(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the alternatives (`anyOf`) in a JSON schema, except null; without alternatives, yield
    the schema itself."""
    for member in schema.get("anyOf", [schema]):
        if "anyOf" in member:
            yield from _members(member)
        elif member.get("type") != "null":
            yield member


def _choices(schema: dict[str, Any]) -> list[str]:
    return [str(value) for value in schema.get("enum", [schema.get("const")]) if value is not None]


def _type(schema: dict[str, Any]) -> str:
    return "object" if "$ref" in schema else str(schema.get("type", "any"))


def allowed_values(schema: dict[str, Any]) -> str:  # Any: a JSON schema
    """Describe the allowed values of a JSON schema: types, enumerations, limits."""
    if "anyOf" in schema:
        return " or ".join(allowed_values(member) for member in _members(schema))
    if "$ref" in schema:
        return "object, see below"
    if choices := _choices(schema):
        return " or ".join(f'`"{choice}"`' for choice in choices)
    if schema.get("type") == "array":
        return "list of " + allowed_values(schema["items"])
    words = [f"{sign} {_number(schema[key])}" for key, sign in _LIMITS.items() if key in schema]
    return _type(schema) + (" " + ", ".join(words) if words else "")


def _number(value: float) -> str:
    return f"{value:,}" if value == int(value) else f"{value:g}"
