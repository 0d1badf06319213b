"""Writes docs/recipe.md from the schema: python docs/generate.py. A test holds the two together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tunesmith_schema import Hyperparameters, LoraRecipe, Recipe

PAGE = Path(__file__).with_name("recipe.md")

INTRO = """# The recipe

Made from the schema by `python docs/generate.py`; do not edit.

`recipe` on `POST /v1/fine_tuning/jobs` says how to train. Every key is optional. An unknown key is
an error that names the nearest valid one.
"""


def recipe_page() -> str:
    """The whole page as Markdown."""
    parts = [
        INTRO,
        table("recipe", Recipe),
        table("recipe.lora", LoraRecipe),
        "OpenAI's own three knobs keep their meaning. Naming the same thing differently in "
        "`recipe` is an error.\n",
        table("hyperparameters", Hyperparameters),
    ]
    return "\n".join(parts)


def table(name: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    rows = [
        f"| `{key}` | {kind(schema['properties'][key], schema)} | {default(field)} | "
        f"{(field.description or '').replace('|', '/')} |".replace("\n", " ")
        for key, field in model.model_fields.items()
    ]
    head = f"## `{name}`\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    return (
        "none" if value is None else f"`{str(value).lower() if value in (True, False) else value}`"
    )


def kind(schema: dict[str, Any], whole: dict[str, Any]) -> str:  # Any: a JSON schema
    """A JSON schema in a few words: alternatives, enumerations, bounds."""
    if "anyOf" in schema:
        return " or ".join(kind(one, whole) for one in schema["anyOf"] if one.get("type") != "null")
    if "$ref" in schema:
        return "object, see below"
    if "enum" in schema:
        return " or ".join(f'`"{value}"`' for value in schema["enum"])
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if schema.get("type") == "array":
        return "list of " + kind(schema["items"], whole)
    return f"{schema.get('type', 'any')}{bounds(schema)}"


def bounds(schema: dict[str, Any]) -> str:  # Any: a JSON schema
    words = [
        f"{sign} {number(schema[key])}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    return " " + ", ".join(words) if words else ""


def number(value: float) -> str:
    return f"{value:,}" if value == int(value) else f"{value:g}"


if __name__ == "__main__":
    PAGE.write_text(recipe_page())
