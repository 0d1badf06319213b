"""Pages of a list; iterating over a page also fetches the following pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import tunesmith_schema as wire


class Identified(Protocol):
    """An item of a list; the last item's id is the cursor for the next page."""

    id: str


T = TypeVar("T", bound=Identified)


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """One page of a list. Iterating yields the items of this page and of all following pages."""

    data: list[T]
    has_more: bool
    last_id: str | None
    """Cursor of the next page. Without a search, the cursor is the id of the page's last item. With
    a search, the cursor is the id of the last item that the server searched."""
    _fetch: Callable[[str], Page[T]] = field(repr=False)

    def __iter__(self) -> Iterator[T]:
        page: Page[T] | None = self
        while page is not None:
            yield from page.data
            page = page.next_page()

    def next_page(self) -> Page[T] | None:
        """Fetch the following page; return None after the last page."""
        cursor = self.last_id or (self.data[-1].id if self.data else None)
        if not (self.has_more and cursor):
            return None
        return self._fetch(cursor)


def first_page(fetch: Callable[[str | None], wire.Page[T]], after: str | None) -> Page[T]:
    """Fetch the page that starts after the id `after`. `fetch`: function that requests the page
    after a given id."""
    answer = fetch(after)
    return Page(
        data=answer.data,
        has_more=answer.has_more,
        last_id=answer.last_id,
        _fetch=lambda last: first_page(fetch, last),
    )
