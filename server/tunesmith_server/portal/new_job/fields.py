"""Recipe fields as fields of a form, from the schema."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from tunesmith_schema import RecipeField, recipe_fields

IN_SIGHT = (
    "recipe.learning_rate", "recipe.num_train_epochs", "recipe.max_steps", "recipe.max_seq_length",
    "recipe.lora.r",
)  # fmt: skip
"""Recipe fields that are always shown; the other fields appear after a click."""
TUNING = "recipe.tuning"
EARLY_STOPPING = "recipe.early_stopping"
"""Recipe object that the form adds to the recipe if its checkbox is checked. The checkbox is needed
because even an object with only default values turns early stopping on."""
ON = "on"
"""Value of a checked checkbox."""
_GROUPS = {
    "recipe": "Training",
    "recipe.lora": "LoRA",
    "recipe.early_stopping": "Early stopping",
    "recipe.grpo": "Reinforcement",
    "recipe.rollout": "Generation of completions",
}


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A recipe field as a field of the form."""

    name: str
    """Dotted name, such as `recipe.lora.r`."""
    values: str
    """Allowed values in words."""
    default: str
    options: tuple[str, ...]
    """Values to choose from; empty if any text may be entered."""
    meaning: tuple[str, ...]
    """Description of the field in pieces; every second piece is code."""
    is_box: bool
    """True if the field is a checkbox."""

    @property
    def label(self) -> str:
        return self.name.removeprefix("recipe.")


@functools.cache
def schema() -> dict[str, RecipeField]:
    """Return the recipe fields whose value is not an object, with their names as keys."""
    return {
        field.id: field
        for field in recipe_fields()
        if "object" not in field.types or field.id == EARLY_STOPPING
    }


@functools.cache
def groups() -> dict[str, list[FormField]]:
    """Return the fields that are shown only after a click; the keys are the titles of their
    groups."""
    found: dict[str, list[FormField]] = {title: [] for title in _GROUPS.values()}
    for field in schema().values():
        if field.id not in (*IN_SIGHT, TUNING):
            outer = field.id if field.id == EARLY_STOPPING else field.id.rpartition(".")[0]
            found[_GROUPS[outer]].append(_form_field(field))
    return found


@functools.cache
def folded() -> frozenset[str]:
    """Return the names of the fields that are shown only after a click."""
    return frozenset({"other"} | {field.name for items in groups().values() for field in items})


@functools.cache
def in_sight() -> list[FormField]:
    return [_form_field(schema()[name]) for name in IN_SIGHT]


def _form_field(field: RecipeField) -> FormField:
    types, is_box = set(field.types), field.id == EARLY_STOPPING
    options = [*field.choices, *(("true", "false") if "boolean" in types else ())]
    return FormField(
        name=field.id,
        values="" if is_box else field.values.replace("`", ""),
        default="off" if is_box else text_of(field.default) or "not set",
        options=tuple(options) if types <= {"boolean"} else (),
        meaning=tuple(field.description.split("`")),
        is_box=is_box,
    )


def text_of(value: Any) -> str:  # Any: JSON
    """Return a value as the text of a form field; empty for null and for an empty list."""
    if value is None or value == []:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parsed(field: RecipeField, text: str) -> Any:  # Any: JSON
    """Return the value of an entered text; the schema validates it later."""
    if text in field.choices:
        return text
    value = None
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        value = text
    if "array" in field.types and not isinstance(value, list):
        return [part.strip() for part in text.split(",") if part.strip()]
    return value


def parsed_number(text: str) -> int | str:
    """Return a whole number of at most 18 digits; return any other text unchanged."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def value_at(recipe: Mapping[str, Any], name: str) -> Any:  # Any: JSON
    """Return the value of a field in a recipe, or its default."""
    found: Any = recipe
    for part in name.removeprefix("recipe.").split("."):
        if not isinstance(found, Mapping) or part not in found:
            return schema()[name].default
        found = found[part]
    return found


def put(recipe: dict[str, Any], name: str, value: Any) -> None:  # Any: JSON
    """Set a field of the recipe. A name with a dot sets a field of a nested object."""
    outer, _, inner = name.removeprefix("recipe.").partition(".")
    if inner:
        recipe[outer] = {**(recipe.get(outer) or {}), inner: value}
    else:
        recipe[outer] = value
