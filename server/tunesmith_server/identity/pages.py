"""Pages of the organization's lists. The lists are short, and the oldest item comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import Session

from tunesmith_schema import Page
from tunesmith_server.services.paging import Order, fetch_page, unknown_cursor

Row = TypeVar("Row")
Item = TypeVar("Item", bound=BaseModel)


def page_of(
    session: Session,
    query: Select[Row],
    keys: tuple[ColumnElement[float], ColumnElement[str]],
    to_wire: Callable[[Row], Item],
    *,
    after: str | None,
    limit: int,
    what: str,
    order: Order = "asc",
) -> Page[Item]:
    """Return a page of `query`. `keys`: the columns by which the items are sorted (a time and the
    id). `after`: id of the last item of the previous page. `what`: word for an item in an error
    message."""
    cursor = None
    if after:
        known = query.with_only_columns(*keys).where(keys[1] == after)
        cursor = session.execute(known).one_or_none()
        if cursor is None:
            raise unknown_cursor(after, what)
    rows, more = fetch_page(
        session, query, keys, after=cursor and tuple(cursor), limit=limit, order=order
    )
    items = [to_wire(row) for row in rows]
    ids = [str(getattr(item, "id", "")) for item in items]
    return Page(
        data=items,
        has_more=more,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
    )
