"""Whether every row has what a grader's templates read, found before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from pydantic import JsonValue

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_schema.graders import Grader, MultiGrader

from ..errors import RunError

_FIELD = re.compile(r"\{\{\s*item\.([^\s{}]+)\s*\}\}")


def item_fields(grader: Grader) -> Iterator[tuple[str, str]]:
    """Each field of the row that a grader reads: the grader's name, and the dotted path."""
    if isinstance(grader, MultiGrader):
        for name, single in grader.graders.items():
            yield from ((name, path) for _, path in item_fields(single))
        return
    for template in (getattr(grader, "input", ""), getattr(grader, "reference", "")):
        yield from ((grader.name, path) for path in _FIELD.findall(template))


def check_fields(
    grader: Grader, rows: Iterable[tuple[int, Mapping[str, JsonValue]]], name: str
) -> None:
    """`rows`: of the file `name`, with their numbers. Raises RunError at the first that lacks a
    field."""
    wanted = sorted(set(item_fields(grader)))
    for number, item in rows:
        for of_grader, path in wanted:
            if not _has(item, path):
                raise _missing(name, number, item, of_grader, path)


def _has(item: JsonValue | Mapping[str, JsonValue], path: str) -> bool:
    for part in path.split("."):
        if isinstance(item, list) and part.isdecimal() and int(part) < len(item):
            item = item[int(part)]
        elif isinstance(item, Mapping) and part in item:
            item = item[part]
        else:
            return False
    return item is not None


def _missing(
    name: str, number: int, item: Mapping[str, JsonValue], of_grader: str, path: str
) -> RunError:
    there = ", ".join(repr(field[:40]) for field in list(item)[:8])
    empty = path in item
    return RunError(
        ErrorCode.GRADER_INVALID,
        f"{name}, row {number}: grader '{of_grader}' reads {{{{item.{path}}}}}, "
        + (f"but {path} is null there." if empty else f"but the row has only {there}."),
        category=ErrorCategory.GRADER,
        hint="Mend the row, or the name in the grader's template.",
        param="method.reinforcement.grader",
    )
