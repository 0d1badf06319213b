"""`--recipe lora.r=16` and `--recipe-file`: options into the nested object of the API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

RecipePairs = Annotated[
    list[str] | None, typer.Option("--recipe", metavar="KEY=VALUE", help="For example lora.r=16.")
]
RecipeFile = Annotated[Path | None, typer.Option(help="The recipe as a JSON file.")]

_NAME = "--recipe"


def build_recipe(pairs: Sequence[str], file: Path | None) -> dict[str, Any] | None:  # Any: JSON
    """What `file` holds with `pairs` laid over it; None when nothing was given.

    Only the form is checked here: the schema knows the fields.
    """
    recipe = {} if file is None else _read(file)
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise typer.BadParameter(
                f"{pair!r} is not key=value: for example lora.r=16", param_hint=_NAME
            )
        _put(recipe, key, _value(text))
    return recipe or None


def _read(file: Path) -> dict[str, Any]:  # Any: JSON
    option = "--recipe-file"
    try:
        recipe = json.loads(file.read_text())
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    except ValueError as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}", param_hint=option) from None
    if not isinstance(recipe, dict):
        raise typer.BadParameter(f"{file} holds no JSON object", param_hint=option)
    return recipe


def _put(recipe: dict[str, Any], key: str, value: Any) -> None:  # Any: JSON
    *parents, last = key.split(".")
    place = recipe
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise typer.BadParameter(
                f"{key} cannot be set: {parent} is {inner!r} already", param_hint=_NAME
            )
        place = inner
    place[last] = value


def _value(text: str) -> Any:  # Any: JSON
    try:
        return json.loads(text)
    except ValueError:
        return text  # auto, cosine: words need no quotes
