"""Conversion of pydantic's validation errors to one plain sentence per field.

Pydantic reports one error for each member of a union and puts the member's name into the path
(`packing.bool`, `packing.literal['auto']`). This module joins the errors of a union into one error
that lists all allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .job_fit import DOES_NOT_FIT
from .pydantic_texts import joined, plain_text

_MEMBER = re.compile(r"(?:literal|list|dict|function-\w+)\[.*\]|constrained-\w+|bool|int|float|str")

_TAG = re.compile(r"<\w+>")
"""Path element that pydantic adds for a union member selected by a discriminator."""


_MAX_JOINED = 8
"""Maximum number of pydantic errors in one message. If many items of a list are wrong, pydantic
reports an error for each item and each union member."""


@dataclass(frozen=True, kw_only=True)
class FieldError:
    path: tuple[str | int, ...]
    """Path of the field, without the names of union members."""
    message: str
    first: Mapping[str, Any]  # Any: pydantic's own
    """First pydantic error for the field."""
    count: int
    """Number of pydantic errors in `message`."""

    @property
    def name(self) -> str:
        """Dotted path of the field; empty for the whole object."""
        return ".".join(str(part) for part in self.path)


def field_errors(errors: Iterable[Mapping[str, Any]]) -> list[FieldError]:  # Any: pydantic's own
    """Return one error per field; `errors` is the result of `ValidationError.errors()`."""
    by_path: dict[tuple[str | int, ...], FieldError] = {}
    for error in errors:
        path, inner = _split(tuple(error["loc"]))
        if error["type"] == DOES_NOT_FIT:  # pydantic's path is only `recipe`
            path += tuple(error["ctx"]["field"].split("."))
        known = by_path.get(path)
        if known and known.count == _MAX_JOINED:
            continue
        message = plain_text(error)
        if inner:  # the error is in an item of a list
            message = f"item {'.'.join(str(part) for part in inner)}: {message}"
        by_path[path] = FieldError(
            path=path,
            message=joined(known.message, message) if known else message,
            first=known.first if known else error,
            count=known.count + 1 if known else 1,
        )
    return list(by_path.values())


def _split(loc: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], tuple[str | int, ...]]:
    """Split an error's path into the field's path and the path inside the union member."""
    loc = tuple(part for part in loc if not (isinstance(part, str) and _TAG.fullmatch(part)))
    for index, part in enumerate(loc):
        if index and isinstance(part, str) and _MEMBER.fullmatch(part):
            return loc[:index], loc[index + 1 :]
    return loc, ()
