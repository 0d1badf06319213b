"""Inputs and output of each grader for one completion. In the inputs, references such as
`{{item.answer}}` are replaced by their values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from tunesmith_schema import Sample
from tunesmith_schema.templates import Reference, parse_template

_MAX_TEXT = 20_000
_TEXTS = ("input", "reference")


@dataclass(frozen=True, kw_only=True)
class Grading:
    """Inputs and output of one grader for a completion."""

    name: str
    type: str
    inputs: list[tuple[str, str]]
    """Texts that the grader compares, each with the name of its field."""
    settings: list[tuple[str, str]]
    """Other fields of the grader."""
    score: float | None
    """Score of the completion; None if the grader failed."""


def gradings(method: Mapping[str, Any] | None, sample: Sample, item: Any) -> list[Grading]:
    """Return the graders of a job with their inputs for a completion.

    `item`: row of the training data (any JSON value); None if the row cannot be read.
    """
    grader = ((method or {}).get("reinforcement") or {}).get("grader")
    return [
        _grading(name, each, sample, item)
        for name, each in _single(grader)
        if isinstance(each, dict)
    ]


def formula_of(method: Mapping[str, Any] | None) -> str:
    """Return the formula that computes the reward from the scores; empty for a single grader."""
    grader = ((method or {}).get("reinforcement") or {}).get("grader")
    return str(grader.get("calculate_output") or "") if isinstance(grader, dict) else ""


def _single(grader: Any) -> Iterator[tuple[str, Any]]:  # Any: JSON
    if not isinstance(grader, dict):
        return
    inner = grader.get("graders")
    if grader.get("type") != "multi" or not isinstance(inner, dict):
        yield str(grader.get("name") or grader.get("type") or "grader"), grader
    elif isinstance(inner.get("type"), str):
        yield from _single(inner)
    else:
        yield from ((str(name), each) for name, each in inner.items())


def _grading(name: str, grader: Mapping[str, Any], sample: Sample, item: Any) -> Grading:
    inputs = [
        (field, _filled(text, sample, item)[:_MAX_TEXT])
        for field in _TEXTS
        if isinstance(text := grader.get(field), str)
    ]
    hidden = {*_TEXTS, "name", "type"}
    settings = [(key, _text(value)) for key, value in grader.items() if key not in hidden]
    return Grading(
        name=name,
        type=str(grader.get("type")),
        inputs=inputs,
        settings=settings,
        score=sample.scores.get(name),
    )


def _filled(template: str, sample: Sample, item: Any) -> str:
    try:
        parts = parse_template(template)
    except ValueError:
        return template
    return "".join(part if isinstance(part, str) else _value(part, sample, item) for part in parts)


def _value(reference: Reference, sample: Sample, item: Any) -> str:
    if reference.root == "output_text":
        return sample.completion
    if reference.root == "item":
        return _walk(item, reference)
    try:
        return _walk(from_json(sample.completion), reference)
    except ValueError:
        return f"{{{{{reference.text}}}}}"


def _walk(value: Any, reference: Reference) -> str:
    """Return the value for a reference such as `{{item.answer}}`. If there is no such value, return
    the text of the reference."""
    for step in reference.path:
        has_step = isinstance(value, dict) and step in value
        is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not has_step and not is_index:
            return f"{{{{{reference.text}}}}}"
        value = value[step]
    return _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
