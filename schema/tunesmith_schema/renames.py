"""Former names in the API and in stored documents.

Requests must use the current names: the API refuses a former name. `documents.py` translates the
former names of stored documents. Decision 0021 has the rules for renames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Any  # Any: JSON

RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "precision": {"bf16_error_word": "bf16_split_master"},  # 2026-11, decision 0021
}
"""For each field with renamed values: a mapping of each former value to its current value."""

_FORMER_VALUES = {
    field: {current: former for former, current in values.items()}
    for field, values in RENAMED_VALUES.items()
}


def check_current(field: str, value: object) -> None:
    """Raise ValueError if `value` is a former name."""
    current = RENAMED_VALUES.get(field, {}).get(value) if isinstance(value, str) else None
    if current is not None:
        raise ValueError(f"'{value}' is now called '{current}'")


def current_names(document: Json) -> Json:
    """Return a copy of a stored JSON document with current names only."""
    return _replaced(document, RENAMED_VALUES)


def former_names(document: Json) -> Json:
    """Return a copy of a JSON document with the former name of each renamed value.

    `RunSpec.sha256` uses this copy, so that a rename does not change the SHA-256.
    """
    return _replaced(document, _FORMER_VALUES)


def _replaced(document: Json, renamed: Mapping[str, Mapping[str, str]]) -> Json:
    if isinstance(document, list):
        return [_replaced(item, renamed) for item in document]
    if not isinstance(document, dict):
        return document
    result = {key: _replaced(value, renamed) for key, value in document.items()}
    for field, values in renamed.items():
        # A choice in plan.json or a report names its field: {"name": field, "value": value}.
        key = "value" if result.get("name") == field else field
        if isinstance(value := result.get(key), str):
            result[key] = values.get(value, value)
    return result
