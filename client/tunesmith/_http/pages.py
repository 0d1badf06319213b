"""A page of a list that goes on to the pages after it. Knows no resource."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import tunesmith_schema as wire


class Identified(Protocol):
    """What can stand in a list: its id is the cursor."""

    id: str


T = TypeVar("T", bound=Identified)


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """`data` holds this page; iterating gives its items and those of all pages after it."""

    data: list[T]
    has_more: bool
    _fetch: Callable[[str], Page[T]] = field(repr=False)

    def __iter__(self) -> Iterator[T]:
        page: Page[T] | None = self
        while page is not None:
            yield from page.data
            page = page.next_page()

    def next_page(self) -> Page[T] | None:
        """The page after this one, None after the last."""
        if not (self.has_more and self.data):
            return None
        return self._fetch(self.data[-1].id)


def first_page(ask: Callable[[str | None], wire.Page[T]], after: str | None) -> Page[T]:
    """`ask` gets the id to continue after and gives that page's wire form."""
    answer = ask(after)
    return Page(
        data=answer.data,
        has_more=answer.has_more,
        _fetch=lambda last: first_page(ask, last),
    )
