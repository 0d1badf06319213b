"""Pages of a list as JSON. A page has a maximum number of bytes, so that a list request needs
little memory. If a page ends before its last row, `has_more` is true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Select, tuple_
from sqlalchemy.orm import Session

from .paging import Order, unknown_cursor

PAGE_BYTES = 2 * 1024 * 1024
"""Number of bytes at which a page ends; a larger item gets its own page."""
_CHUNK = 50


class PageBuilder:
    """Page that grows item by item."""

    def __init__(self, max_bytes: int = PAGE_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._ids: list[str] = []
        self._items: list[bytes] = []
        self.has_more = False
        self.cursor: str | None = None
        """Value of `last_id` in the response; None means the id of the last item. A search sets the
        cursor to the last row that was searched, because this row may come after the last item
        found."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item_id: str, item: bytes) -> bool:
        """Add an item as JSON. Returns False if the page is full; the item then starts the next
        page."""
        self._bytes += len(item) + 1
        if self._items and self._bytes > self._max_bytes:
            self.has_more = True
            return False
        self._ids.append(item_id)
        self._items.append(item)
        return True

    def content(self) -> bytes:
        """Return the page in OpenAI's format."""
        end = {
            "has_more": self.has_more,
            "first_id": self._ids[0] if self._ids else None,
            "last_id": self.cursor or (self._ids[-1] if self._ids else None),
        }
        return b'{"object":"list","data":[' + b",".join(self._items) + b"]," + to_json(end)[1:]


def read_page(
    session: Session,
    query: Select[*tuple[Any, ...]],
    keys: tuple[ColumnElement[Any], ...],
    *,
    after: tuple[Any, ...] | None,
    limit: int,
    order: Order,
    key_of: Callable[[Any], tuple[Any, ...]],
    items_of: Callable[[Sequence[Any]], Iterable[tuple[str, bytes]]],
    page: PageBuilder | None = None,
    chunk: int = _CHUNK,
) -> PageBuilder:
    """Read a page of rows, sorted by the columns `keys`. The page starts after the row that has the
    values `after` in these columns.

    `key_of` returns a row's values in the columns `keys`. `items_of` takes a list of rows and
    returns the id and the JSON of each row.
    """
    page = page or PageBuilder()
    newest_first = order == "desc"
    query = query.order_by(*(key.desc() if newest_first else key.asc() for key in keys))
    while True:
        part, wanted = query, min(chunk, limit - len(page))
        if after is not None:
            position = tuple_(*keys)
            part = query.where(position < after if newest_first else position > after)
        rows = session.execute(part.limit(wanted + 1)).all()
        for item_id, item in items_of(rows[:wanted]):
            if not page.add(item_id, item):
                return page
        if len(rows) <= wanted:
            return page
        if len(page) >= limit:
            page.has_more = True
            return page
        after = key_of(rows[wanted - 1])


def read_newest(
    session: Session,
    query: Select[*tuple[Any, ...]],
    entity: Any,  # Any: a mapped class with id and created_at
    to_wire: Callable[[Sequence[Any]], Iterable[BaseModel]],
    *,
    after: str | None,
    limit: int,
    order: Order,
    what: str,
) -> PageBuilder:
    """Read a page of the rows of `entity` in the order of their creation. `to_wire` returns the
    items for a list of rows. `after` is the id of the last item of the previous page. `what` is the
    word for an item in an error message."""

    def items_of(rows: Sequence[Any]) -> Iterable[tuple[str, bytes]]:
        entities = [row for (row,) in rows]
        items = to_wire(entities)
        return ((row.id, json_of(item)) for row, item in zip(entities, items, strict=True))

    cursor = None
    if after:
        last = session.get(entity, after)
        if last is None:
            raise unknown_cursor(after, what)
        cursor = (last.created_at, last.id)
    return read_page(
        session,
        query,
        (entity.created_at.expression, entity.id.expression),
        after=cursor,
        limit=limit,
        order=order,
        key_of=lambda row: (row[0].created_at, row[0].id),
        items_of=items_of,
    )


def json_of(item: BaseModel) -> bytes:
    return item.__pydantic_serializer__.to_json(item)
