"""Pydantic's report of a wrong object as one sentence a field, for whoever shows it to people.

Pydantic complains once for each member of a union and puts the member's name into the path
(`packing.bool`, `packing.literal['auto']`): here they are one complaint that says all that is
allowed.
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
"""Of a member that a discriminator chose."""


@dataclass(frozen=True, kw_only=True)
class Complaint:
    path: tuple[str | int, ...]
    """Of the field, without members of unions."""
    message: str
    first: Mapping[str, Any]  # Any: pydantic's own
    """What pydantic says of the field first."""

    @property
    def name(self) -> str:
        """Dotted; empty for the whole object."""
        return ".".join(str(part) for part in self.path)


def complaints(errors: Iterable[Mapping[str, Any]]) -> list[Complaint]:  # Any: pydantic's own
    """One for each field, of `ValidationError.errors()`."""
    found: dict[tuple[str | int, ...], Complaint] = {}
    for error in errors:
        path, inner = _split(tuple(error["loc"]))
        if error["type"] == DOES_NOT_FIT:  # found where the whole recipe is looked at
            path += tuple(error["ctx"]["field"].split("."))
        message = plain_text(error)
        if inner:  # of one item of a list that is a member of the union
            message = f"item {'.'.join(str(part) for part in inner)}: {message}"
        known = found.get(path)
        found[path] = Complaint(
            path=path,
            message=joined(known.message, message) if known else message,
            first=known.first if known else error,
        )
    return list(found.values())


def _split(loc: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], tuple[str | int, ...]]:
    """The field, and where inside a member of its union."""
    loc = tuple(part for part in loc if not (isinstance(part, str) and _TAG.fullmatch(part)))
    for place, part in enumerate(loc):
        if place and isinstance(part, str) and _MEMBER.fullmatch(part):
            return loc[:place], loc[place + 1 :]
    return loc, ()
