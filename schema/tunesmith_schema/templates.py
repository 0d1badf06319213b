"""Parser of grader templates: text with `{{item.x}}`, `{{sample.output_text}}` and
`{{sample.output_json.x}}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_STEP = re.compile(r"\.?([^\s.\[\]{}'\"]+)|\[(\d{1,9})\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")
_VALID = "{{item.FIELD}}, {{sample.output_text}} or {{sample.output_json.FIELD}}"


@dataclass(frozen=True)
class Reference:
    """Reference to a value in the data row or in the completion."""

    root: Literal["item", "output_text", "output_json"]
    path: tuple[str | int, ...]
    """Object keys and list indices."""
    text: str
    """Text of the reference in the template."""


def parse_template(template: str) -> tuple[str | Reference, ...]:
    """Split a template into texts and references, in order. Raises ValueError that quotes the
    invalid part and lists the valid references."""
    parts: list[str | Reference] = []
    end = 0
    # Not a regular expression: its time would grow with the square of the number of `{{`.
    while (start := template.find("{{", end)) >= 0:
        stop = template.find("}}", start + 2)
        if stop < 0:
            raise ValueError(f"'{template[start : start + 60]}' has no closing }}}}")
        parts += [template[end:start], _reference(template[start + 2 : stop].strip())]
        end = stop + 2
    return tuple(part for part in (*parts, template[end:]) if part != "")


def references(template: str) -> tuple[Reference, ...]:
    """Return the references in a valid template."""
    return tuple(part for part in parse_template(template) if isinstance(part, Reference))


def _reference(text: str) -> Reference:
    path, at = list[str | int](), 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None or (at == 0) == text.startswith((".", "["), at):
            raise ValueError(f"'{{{{{text[:60]}}}}}' is not a valid reference: use {_VALID}")
        key, index, quoted, double = step.groups()
        path.append(int(index) if index is not None else key or quoted or double or "")
        at = step.end()
    if len(path) > 1 and path[0] == "item":
        return Reference("item", tuple(path[1:]), text)
    if path == ["sample", "output_text"]:
        return Reference("output_text", (), text)
    if path[:2] == ["sample", "output_json"]:
        return Reference("output_json", tuple(path[2:]), text)
    raise ValueError(f"'{{{{{text[:60]}}}}}' is not available: use {_VALID}")
