"""Tables as CSV files that spreadsheets can open safely."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from starlette.responses import Response

from tunesmith_server.portal.security import HEADERS

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet treats as a formula."""

Cell = str | int | float | None


def as_csv(name: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Response:
    """Return a table as the download `name`.csv.

    A text that a spreadsheet would treat as a formula gets an apostrophe at its start.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    writer.writerow([_inert(cell) for cell in header])
    writer.writerows([_inert(cell) for cell in row] for row in rows)
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{plain}.csv"'}
    content = table.getvalue().encode(errors="replace")
    return Response(content, media_type="text/csv; charset=utf-8", headers=headers)


def _inert(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
