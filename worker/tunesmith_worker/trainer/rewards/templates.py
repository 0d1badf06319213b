"""Rendering of grader templates, and detection of template fields that rows lack."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from pydantic import BaseModel, JsonValue

from tunesmith_schema import Grader, MultiGrader
from tunesmith_schema.templates import Reference, parse_template, references

from .protocol import CompletionText, GraderError, Item, NoSuchOutput, Prompt

_FENCE = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_SHOWN_FIELDS = 12
_DEEPEST = 500


@dataclass(frozen=True)
class GraderInput:
    """A completion and its row, the input of a grader. The completion's JSON is parsed only
    once."""

    prompt: Prompt
    sample: CompletionText

    @cached_property
    def output_json(self) -> JsonValue:
        """The completion parsed as JSON. Raises NoSuchOutput if the completion is not JSON."""
        return read_json(self.sample.text)


Render = Callable[[GraderInput], str]


def renderer(template: str) -> Render:
    """Return the function that renders a template.

    The function raises GraderError if the row lacks a field, and NoSuchOutput if the completion
    lacks a field.
    """
    parts = parse_template(template)

    def render(completion: GraderInput) -> str:
        return "".join(
            part if isinstance(part, str) else as_text(_value(part, completion)) for part in parts
        )

    return render


def as_text(value: JsonValue) -> str:
    """Return text unchanged and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_json(text: str) -> JsonValue:
    """Parse a text that is JSON or one Markdown code block of JSON.

    Raises NoSuchOutput if the text is not JSON, contains NaN or Infinity, or is nested too deeply.
    """
    fenced = _FENCE.fullmatch(text)
    try:
        value: JsonValue = json.loads(fenced[1] if fenced else text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # ValueError also reports too many digits
        raise NoSuchOutput(f"the completion is not JSON: {error}") from error
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _children(outer)]:
        depth += 1
        if depth > _DEEPEST:
            raise NoSuchOutput(f"the completion's JSON is nested more than {_DEEPEST} levels deep")
    return value


def _children(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


@dataclass(frozen=True, kw_only=True)
class MissingField:
    """A template field that some rows lack."""

    field: str
    """Name of the field in the template."""
    first: int
    """Index of the first row without the field."""
    rows: int
    """Number of rows without the field."""
    explanation: str
    """End of the error message: the missing path in the first row without the field, and what the
    row has instead."""

    def __str__(self) -> str:
        return f"the grader reads {{{{{self.field}}}}}, which {self.explanation}"


def missing_fields(grader: Grader, items: Iterable[Item]) -> list[MissingField]:
    """Return the fields of a grader's templates that some rows lack, in order of occurrence."""
    fields = {
        reference.text: reference
        for template in _templates(grader)
        for reference in references(template)
        if reference.root == "item"
    }
    missing: dict[str, MissingField] = {}
    for place, item in enumerate(items):
        for text, reference in fields.items():
            try:
                _walk(item, reference.path)
            except LookupError:
                known = missing.get(text)
                missing[text] = MissingField(
                    field=text,
                    first=known.first if known else place,
                    rows=known.rows + 1 if known else 1,
                    explanation=known.explanation if known else _explain(item, reference.path),
                )
    return list(missing.values())


def _templates(grader: BaseModel) -> list[str]:
    if isinstance(grader, MultiGrader):
        return [text for inner in grader.by_name.values() for text in _templates(inner)]
    texts = (getattr(grader, name, None) for name in ("input", "reference"))
    return [text for text in texts if text is not None]


def _value(reference: Reference, completion: GraderInput) -> JsonValue:
    if reference.root == "output_text":
        return completion.sample.text
    if reference.root == "output_json":
        try:
            return _walk(completion.output_json, reference.path)
        except LookupError:
            raise NoSuchOutput(f"the completion has no {reference.text}") from None
    try:
        return _walk(completion.prompt.item, reference.path)
    except LookupError:
        row = completion.prompt
        explanation = _explain(row.item, reference.path)
        raise GraderError(f"row {row.number}: {{{{{reference.text}}}}} {explanation}") from None


def _walk(value: JsonValue | Item, path: Sequence[str | int]) -> JsonValue:
    """Follow a path of keys and indices. Raises LookupError if the path does not exist."""
    for step in path:
        match value, step:
            case Mapping(), str():
                value = value[step]
            case list(), int():
                value = value[step]
            case _:
                raise LookupError(step)
    return value  # type: ignore[return-value]  # the path is not empty, or `value` is JSON


def _explain(item: Item, path: Sequence[str | int]) -> str:
    """Describe the last place on the path of a missing field that exists in the row, and the row's
    content at this place."""
    value: JsonValue | Item = item
    for depth in range(len(path)):
        try:
            value = _walk(value, path[depth : depth + 1])
        except LookupError:
            break
    return f"is missing: {_name(path[:depth])} {_content(value)}"


def _name(path: Sequence[str | int]) -> str:
    inner = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in path)
    return f"the row's '{inner.removeprefix('.')[:80]}'" if inner else "the row"


def _content(value: JsonValue | Item) -> str:
    if isinstance(value, Mapping):
        fields = [field[:40] for field in value]
        more = f" and {len(fields) - _SHOWN_FIELDS} more" if len(fields) > _SHOWN_FIELDS else ""
        return f"has {', '.join(fields[:_SHOWN_FIELDS])}{more}" if fields else "is empty"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    return f"is {json.dumps(value, ensure_ascii=False)[:80]}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
