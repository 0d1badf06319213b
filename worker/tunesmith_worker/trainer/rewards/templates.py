"""Renders graders' templates, and finds what a data set lacks for them before a run starts."""

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

from .protocol import GraderError, Item, NoSuchOutput, Prompt, Sample

_FENCE = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_SHOWN_FIELDS = 12
_DEEPEST = 500


@dataclass(frozen=True)
class Completion:
    """One completion and the row it answers; its JSON is read once."""

    prompt: Prompt
    sample: Sample

    @cached_property
    def output_json(self) -> JsonValue:
        """Raises NoSuchOutput."""
        return read_json(self.sample.text)


Render = Callable[[Completion], str]


def renderer(template: str) -> Render:
    """What makes text of a template. It raises GraderError (the row lacks a field) and NoSuchOutput
    (the completion does)."""
    parts = parse_template(template)

    def render(completion: Completion) -> str:
        return "".join(
            part if isinstance(part, str) else as_text(_value(part, completion)) for part in parts
        )

    return render


def as_text(value: JsonValue) -> str:
    """Text as it is; anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_json(text: str) -> JsonValue:
    """Of a whole text, or of the Markdown fence that is all of it. Raises NoSuchOutput, also for
    what is nested so deeply that those who walk it would run out of stack; NaN and Infinity are no
    JSON."""
    fenced = _FENCE.fullmatch(text)
    try:
        value: JsonValue = json.loads(fenced[1] if fenced else text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # ValueError: also digits by the thousand
        raise NoSuchOutput(f"the completion is not JSON: {error}") from error
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
        if depth > _DEEPEST:
            raise NoSuchOutput(f"the completion is nested more than {_DEEPEST} deep")
    return value


def _inside(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


@dataclass(frozen=True, kw_only=True)
class MissingField:
    """A template reads what rows do not have."""

    field: str
    """As the template names it."""
    first: int
    """Where the first row without it stands among the items."""
    rows: int
    """How many have none."""
    there: str
    """What the first one has in its place."""

    def __str__(self) -> str:
        return f"the grader reads {{{{{self.field}}}}}, which {self.there}"


def missing_fields(grader: Grader, items: Iterable[Item]) -> list[MissingField]:
    """One for each reference of a grader's templates that some rows lack, in the order in which
    they are met."""
    asked = {
        reference.text: reference
        for template in _templates(grader)
        for reference in references(template)
        if reference.root == "item"
    }
    found: dict[str, MissingField] = {}
    for place, item in enumerate(items):
        for text, reference in asked.items():
            try:
                _walk(item, reference.path)
            except LookupError:
                known = found.get(text)
                found[text] = MissingField(
                    field=text,
                    first=known.first if known else place,
                    rows=known.rows + 1 if known else 1,
                    there=known.there if known else _there_is(item, reference.path),
                )
    return list(found.values())


def _templates(grader: BaseModel) -> list[str]:
    if isinstance(grader, MultiGrader):
        return [text for inner in grader.by_name.values() for text in _templates(inner)]
    texts = (getattr(grader, name, None) for name in ("input", "reference"))
    return [text for text in texts if text is not None]


def _value(reference: Reference, completion: Completion) -> JsonValue:
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
        there = _there_is(row.item, reference.path)
        raise GraderError(f"row {row.number}: {{{{{reference.text}}}}} {there}") from None


def _walk(value: JsonValue | Item, path: Sequence[str | int]) -> JsonValue:
    """Raises LookupError."""
    for step in path:
        match value, step:
            case Mapping(), str():
                value = value[step]
            case list(), int():
                value = value[step]
            case _:
                raise LookupError(step)
    return value  # type: ignore[return-value]  # a path has a step at least, or starts at JSON


def _there_is(item: Item, path: Sequence[str | int]) -> str:
    """Where a row's path ends that leads nowhere."""
    value: JsonValue | Item = item
    for depth in range(len(path)):
        try:
            value = _walk(value, path[depth : depth + 1])
        except LookupError:
            break
    return f"is not there: {_named(path[:depth])} {_content(value)}"


def _named(path: Sequence[str | int]) -> str:
    inner = "".join(f".{one}" if isinstance(one, str) else f"[{one}]" for one in path)
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
    raise ValueError(f"{name} is no JSON")
