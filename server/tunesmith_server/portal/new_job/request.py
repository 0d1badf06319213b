"""Conversion of the form's texts to the body of a request, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from tunesmith_schema import ErrorCode, RequestProblem, Scheduling

from . import fields

PLAIN = ("model", "training_file", "validation_file", "suffix")
"""Fields of the request whose values are texts."""
OTHER = ("seed", "metadata", "hyperparameters", "scheduling")
"""Fields of the request that are entered in one text field, as JSON."""
NAMES = (*PLAIN, "method", "grader", "other", "step", "token")
"""Fields of the form that are not part of the recipe."""
KEPT_BY_A_FORK = (*PLAIN[:3], "method", "other", fields.TUNING)
"""Fields of the form that a fork copies from the original job."""
Texts = Mapping[str, str]
"""Text of each field of the form; a missing field is empty."""


def body_of(texts: Texts) -> tuple[dict[str, Any], list[RequestProblem]]:  # Any: JSON
    """Return the body of a create request, and the problems of the form's JSON texts."""
    problems: list[RequestProblem] = []
    other = _json_object(texts, "other", problems) or {}
    for name in [name for name in other if name in (*PLAIN, "method", "recipe")]:
        del other[name]
        problems.append(_problem("other", f"other: enter {name} in its own field of the form"))
    body: dict[str, Any] = {name: text for name in PLAIN if (text := texts.get(name, "").strip())}
    hyperparameters = other.pop("hyperparameters", None)
    member = {} if hyperparameters is None else {"hyperparameters": hyperparameters}
    if texts.get("method") == "reinforcement":
        grader = _json_object(texts, "grader", problems)
        member |= {} if grader is None else {"grader": grader}
        body["method"] = {"type": "reinforcement", "reinforcement": member}
    elif member:
        body["method"] = {"type": "supervised", "supervised": member}
    body |= other
    if recipe := recipe_of(texts):
        body["recipe"] = recipe
    return body, problems


def recipe_of(texts: Texts) -> dict[str, Any]:  # Any: JSON
    """Return the recipe with the fields that are not empty in the form."""
    recipe: dict[str, Any] = {}
    for name, field in fields.schema().items():
        text = texts.get(name, "").strip()
        if text and name == fields.EARLY_STOPPING:
            recipe["early_stopping"] = {}
        elif text and (name, text) != (fields.TUNING, field.default):
            fields.put(recipe, name, fields.parsed(field, text))
    return recipe


def _json_object(
    texts: Texts, name: str, problems: list[RequestProblem]
) -> dict[str, Any] | None:  # Any: JSON
    text = texts.get(name, "").strip()
    if not text:
        return None
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        problems.append(_problem(name, f"{name}: not JSON: {error}"))
        return None
    if isinstance(value, dict):
        return value
    problems.append(_problem(name, f"{name}: must be a JSON object, such as {{}}"))
    return None


def _problem(param: str, message: str) -> RequestProblem:
    return RequestProblem(param=param, message=message, code=ErrorCode.INVALID_REQUEST)


def texts_of(body: Mapping[str, Any]) -> dict[str, str]:  # Any: JSON
    """Convert a create request to the texts of the form."""
    texts = {name: body.get(name) or "" for name in PLAIN}
    method = body.get("method") or {}
    member = method.get("reinforcement")
    texts["method"] = "reinforcement" if member else "supervised"
    if member:
        texts["grader"] = _pretty(member["grader"])
    chosen = (member or body).get("hyperparameters") or {}
    usual = Scheduling().model_dump(mode="json")
    asked = body.get("scheduling") or {}
    other = {
        "seed": body.get("seed"),
        "metadata": body.get("metadata"),
        "hyperparameters": {k: v for k, v in chosen.items() if v not in ("auto", "default")},
        "scheduling": {name: value for name, value in asked.items() if value != usual.get(name)},
    }
    texts["other"] = _pretty(
        {name: value for name, value in other.items() if value not in (None, {})}
    )
    recipe = body.get("recipe") or {}
    for name, field in fields.schema().items():
        value = fields.value_at(recipe, name)
        if name == fields.EARLY_STOPPING:
            texts[name] = fields.ON if value is not None else ""
        elif value != field.default:
            texts[name] = fields.text_of(value)
    return texts


def _pretty(value: Any) -> str:  # Any: JSON
    return json.dumps(value, indent=2, ensure_ascii=False) if value else ""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Return the changes from one recipe to another, in the format of a fork's request."""
    found: dict[str, Any] = {}
    for name in fields.schema():
        before, after = fields.value_at(old, name), fields.value_at(new, name)
        if name == fields.EARLY_STOPPING:
            if (before is None) != (after is None):
                found["early_stopping"] = after
        elif before != after and found.get("early_stopping", {}) is not None:
            fields.put(found, name, after)
    return found


def field_of(param: str | None) -> str:
    """Return the field of the form that the `param` of an error names; empty if there is no such
    field."""
    first = (param or "").partition(".")[0]
    if first == "method":
        if "hyperparameters" in str(param):
            return "other"
        return "grader" if str(param).startswith("method.reinforcement") else "method"
    if first in OTHER:
        return "other"
    if first in NAMES:
        return first
    parts = (param or "").split(".")
    for length in range(len(parts), 1, -1):
        name = ".".join(parts[:length])
        if name in fields.schema():
            return name
    return ""
