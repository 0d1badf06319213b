"""Keyset pagination of a table, newest first by default."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Select, tuple_
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import BadRequest

Order = Literal["asc", "desc"]
Row = TypeVar("Row")


def fetch_page(
    session: Session,
    query: Select[Row],
    keys: tuple[ColumnElement[Any], ...],
    *,
    after: tuple[Any, ...] | None,
    limit: int,
    order: Order,
) -> tuple[list[Row], bool]:
    """Return a page of rows, and True if more rows follow. The rows are sorted by the columns
    `keys`; the page starts after the row that has the values `after` in these columns."""
    newest_first = order == "desc"
    if after is not None:
        position = tuple_(*keys)
        query = query.where(position < after if newest_first else position > after)
    query = query.order_by(*(key.desc() if newest_first else key.asc() for key in keys))
    rows = list(session.scalars(query.limit(limit + 1)))
    return rows[:limit], len(rows) > limit


def number_in(text: str) -> int | None:
    """Return `text` as an integer, or None if the database cannot store it as an integer."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def unknown_cursor(after: str, what: str) -> BadRequest:
    return BadRequest(
        ErrorCode.INVALID_REQUEST,
        f"after: no {what} {after!r} in this list",
        param="after",
        hint="pass the id of the last item of the previous page",
    )
