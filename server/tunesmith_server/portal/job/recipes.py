"""Recipe of a job as lines, and the fields that differ from the defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith_schema import Choice, Recipe

_ADVICE = re.compile(r"\brecipe\.([a-z_]+(?:\.[a-z_]+)?)=([A-Za-z0-9_.+-]+)")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A field of the recipe."""

    name: str
    value: str
    default: str
    chosen: str
    """Value chosen for `auto`; empty if no value was chosen."""
    reason: str
    """Reason for the chosen value."""

    @property
    def differs(self) -> bool:
        return self.value != self.default


def lines(recipe: Mapping[str, Any], choices: Sequence[Choice]) -> list[Line]:
    """Return all fields of a recipe (JSON); fields of nested objects have dotted names."""
    defaults = _flat(Recipe().model_dump(mode="json"))
    chosen = {choice.name: choice for choice in choices}
    found = []
    for name, value in _flat(recipe).items():
        choice = chosen.get(name) or chosen.get(name.rpartition(".")[2])
        found.append(
            Line(
                name=name,
                value=_text(value),
                default=_text(defaults.get(name)),
                chosen=_text(choice.value) if choice and value == "auto" else "",
                reason=choice.reason if choice and value == "auto" else "",
            )
        )
    return found


def advised(text: str) -> tuple[str, str] | None:
    """Return the recipe field and the value that the text of an advice recommends; None if the text
    names no field."""
    match = _ADVICE.search(text)
    return (match[1], match[2].rstrip(".")) if match else None


def changes(field: str, value: str) -> dict[str, Any]:  # Any: JSON
    """Return the change of one field in the format of `JobFork.recipe`."""
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    outer, _, inner = field.partition(".")
    return {outer: {inner: parsed}} if inner else {outer: parsed}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
