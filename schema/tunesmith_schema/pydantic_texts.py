"""Plain words for pydantic's error types: "must be at most 1" for `less_than_equal`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBER = "must be a number"
_INTEGER = "must be an integer"
_BOOLEAN = "must be true or false"
_STRING = "must be a string"
_LIST = "must be a list"
_OBJECT = "must be an object"

_TEXTS = {
    "missing": "is required",
    "none_required": "must be null",
    "extra_forbidden": "is not a known field",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_from_float": _INTEGER,
    "int_parsing_size": "is too large for an integer",
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "string_type": _STRING,
    "string_unicode": "must be valid UTF-8",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "dict_type": _OBJECT,
    "mapping_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "union_tag_not_found": "must have the field {discriminator}",
    "union_tag_invalid": "must have one of these values in {discriminator}: {expected_tags}",
}


def plain_text(error: Mapping[str, Any]) -> str:  # Any: pydantic's own
    """Return the message of one item of `ValidationError.errors()` in plain words. Messages from
    our own validators stay unchanged."""
    text = _TEXTS.get(error["type"])
    if text is None:
        return str(error["msg"]).removeprefix("Value error, ")
    context = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in error.get("ctx", {}).items()
    }
    text = text.format_map(context)
    is_one = context.get("min_length", context.get("max_length")) == 1
    return text.removesuffix("s") if is_one and text.endswith(("items", "characters")) else text


def joined(first: str, second: str) -> str:
    """Join the messages for two alternative types of a field, for example "must be at most 1, or
    'auto'"."""
    if first.startswith("must be ") and second.startswith("must be "):
        return f"{first}, or {second.removeprefix('must be ')}"
    return f"{first}, or: {second}"
