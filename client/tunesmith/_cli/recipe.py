"""The options `--recipe lora.r=16` and `--recipe-file`, merged into one nested recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .json_option import read_json_object

RecipePairs = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        metavar="KEY=VALUE",
        help="A recipe field, such as lora.r=16. Repeatable.",
    ),
]
RecipeFile = Annotated[
    Path | None, typer.Option(help="Recipe as JSON; --recipe overrides its fields.")
]

_NAME = "--recipe"


def build_recipe(pairs: Sequence[str], file: Path | None) -> dict[str, Any] | None:  # Any: JSON
    """Return the recipe from `file`, changed by the fields in `pairs`. Without `file` and `pairs`,
    return None.

    The schema of the request checks the fields later.
    """
    recipe = {} if file is None else read_json_object(file, "--recipe-file")
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise typer.BadParameter(
                f"{pair!r} is not KEY=VALUE, such as lora.r=16", param_hint=_NAME
            )
        _put(recipe, key, _value(text))
    return recipe or None


def _put(recipe: dict[str, Any], key: str, value: Any) -> None:  # Any: JSON
    *parents, last = key.split(".")
    fields = recipe
    for parent in parents:
        inner = fields.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise typer.BadParameter(
                f"cannot set {key}: {parent} is already {inner!r}", param_hint=_NAME
            )
        fields = inner
    fields[last] = value


def _value(text: str) -> Any:  # Any: JSON
    try:
        return json.loads(text)
    except ValueError:
        return text  # plain words such as auto and cosine need no quotes
