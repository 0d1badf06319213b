"""Page of a data set: result of the validation, rows, statistics and uses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlencode

from pydantic_core import from_json, to_json
from starlette.responses import Response

from tunesmith_schema import MAX_ROWS_PAGE, DataRow, FilePurpose, FileStats, FileUse
from tunesmith_server.api.files import content_missing, send_or_redirect
from tunesmith_server.core.errors import BadRequest, NotFound, ServiceError
from tunesmith_server.models import FileRow
from tunesmith_server.portal import security
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.data import conversation, figures
from tunesmith_server.portal.data.conversation import Conversation
from tunesmith_server.portal.tables import Cell, as_csv
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.data import file_rows, file_stats, file_uses, files

from . import data

_FILE = "GET /files/{file_id}"
_HERE = f"{data.HERE}/{{file_id}}"
_ROWS = 10
_FIRST_ROWS = 3
_USES = 20
_OTHERS = 100
_MOST_USES = 1000
_MAX_TEXT = 200
_LINE_DIGITS = 12
_KEYS = (("/", "Search the rows"),)


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """A row of the file as a conversation, or the problem of its line."""

    row: DataRow
    conversation: Conversation | None

    @classmethod
    def of(cls, row: DataRow) -> ShownRow:
        return cls(row=row, conversation=None if row.problem else conversation.of_row(row.data))


@dataclass(frozen=True, kw_only=True)
class RowsPart:
    """Rows of one page, or the reason why no rows can be shown."""

    rows: list[ShownRow] = field(default_factory=list)
    behind: str = ""
    """Position from which the next page starts; empty at the end of the file."""
    problem: ServiceError | None = None


def show(visit: Visit) -> Response:
    file = files.to_wire(files.retrieve(visit.session, visit.param("file_id")))
    stats = _stats(visit, file.id)
    uses, more_uses = _uses(visit, file.id, _USES)
    found = file.validation
    newest = files.newest(visit.session, FilePurpose.FINE_TUNE, _OTHERS)
    return visit.show(
        "data/file.html",
        file=file,
        usable_for=data.usable_for(file),
        refused=dict(found.refused) if found and found.ok else {},
        problems=found.problems if found else [],
        num_problems=data.problems_of(file),
        format=data.format_of(file),
        stats=stats,
        bars=figures.bars(stats),
        others=[other for other in newest if other.id != file.id],
        is_known=bool(visit.query("known")),
        uses=uses,
        more_uses=more_uses,
        line=_line(visit),
        text=_text(visit),
        rows=f"{data.HERE}/{file.id}/rows?{visit.request.url.query}",
        may_write=data.may_write(visit),
        calls=_calls(file.id),
        page_keys=_KEYS,
    )


def rows(visit: Visit) -> Response:
    """Show a page of rows. The page starts at a line or after a position; in a search, it has only
    rows that contain the text."""
    file = files.retrieve(visit.session, visit.param("file_id"))
    text = _text(visit)
    part = _read(visit, file, _ROWS)
    query = {"q": text, "after": part.behind}
    return visit.show(
        "data/_rows.html" if visit.is_part else "data/rows.html",
        file=file,
        part=part,
        next_page=_address(file.id, query) if part.behind else "",
        table=f"{data.HERE}/{file.id}/rows.csv?{visit.request.url.query}",
        text=text,
        line=_line(visit),
        calls=_calls(file.id)[1:2],
    )


def first_rows(visit: Visit) -> Response:
    """Show the first rows of the file that is chosen in a form; show nothing if no file is
    chosen."""
    file_id = visit.query("training_file")
    part, file = None, None
    if file_id:
        with suppress(NotFound):
            file = files.retrieve(visit.session, file_id)
            visit.reads.append((_ROWS_ROUTE, {"file_id": file.id}))
            part = _read(visit, file, _FIRST_ROWS)
    return visit.show("data/_first.html", file=file, part=part)


def rows_table(visit: Visit) -> Response:
    """Return a CSV file of the rows on one page."""
    file = files.retrieve(visit.session, visit.param("file_id"))
    part = _read(visit, file, MAX_ROWS_PAGE)
    if part.problem:
        raise part.problem
    lines: list[list[Cell]] = [
        [item.row.line, item.row.text if item.row.problem else to_json(item.row.data).decode(),
         item.row.problem]
        for item in part.rows
    ]  # fmt: skip
    return as_csv(f"{file.id}-rows", ("line", "row", "problem"), lines)


def overlap(visit: Visit) -> Response:
    """Show the rows of the file that are also in another file."""
    file = files.retrieve(visit.session, visit.param("file_id"))
    other, found, problem = visit.query("with")[:64], None, None
    try:
        found = file_stats.overlap(visit.session, file.id, other) if other else None
    except (BadRequest, NotFound) as error:
        problem = error
    return visit.show(
        "data/_overlap.html" if visit.is_part else "data/overlap.html",
        file=file,
        found=found,
        problem=problem,
        calls=_calls(file.id)[-1:],
    )


def lengths_table(visit: Visit) -> Response:
    """Return the histogram of lengths as CSV."""
    found = file_stats.retrieve(visit.session, visit.param("file_id")).lengths
    bins: list[list[Cell]] = [[item.upto, item.rows] for item in found.histogram] if found else []
    return as_csv(f"{visit.param('file_id')}-lengths", ("up_to_characters", "rows"), bins)


def uses_table(visit: Visit) -> Response:
    """Return a CSV file of the jobs and evaluations that use the data file."""
    found = _uses(visit, files.retrieve(visit.session, visit.param("file_id")).id, _MOST_USES)[0]
    header = ("id", "name", "kind", "role", "status", "model", "created_at")
    cells: list[list[Cell]] = [
        [use.id, use.name, use.kind, use.role, use.status, use.model, use.created_at]
        for use in found
    ]
    return as_csv(f"{visit.param('file_id')}-uses", header, cells)


def problems_table(visit: Visit) -> Response:
    """Return a CSV file of the first rows that each method cannot use, with the reasons."""
    file = files.to_wire(files.retrieve(visit.session, visit.param("file_id")))
    found = file.validation
    refused = dict(found.refused) if found else {}
    lines: list[list[Cell]] = [
        [method, problem.row, problem.message]
        for method, bad in refused.items()
        for problem in bad.problems
    ]
    if found and not refused:
        lines = [["", problem.row, problem.message] for problem in found.problems]
    return as_csv(f"{file.id}-problems", ("method", "row", "problem"), lines)


def download(visit: Visit) -> Response:
    row = files.retrieve(visit.session, visit.param("file_id"))
    response = send_or_redirect(visit.state, row.sha256, row.bytes, row.filename, None)
    for name, value in security.HEADERS.items():
        response.headers[name] = value
    return response


def delete(visit: Visit) -> Response:
    files.delete(visit.session, visit.param("file_id"))
    return visit.go(data.HERE)


def _stats(visit: Visit, file_id: str) -> FileStats | None:
    try:
        return file_stats.retrieve(visit.session, file_id)
    except NotFound:
        return None


def _uses(visit: Visit, file_id: str, limit: int) -> tuple[list[FileUse], bool]:
    page = file_uses.list_uses(visit.session, file_id, after=None, limit=limit, order="desc")
    found = [FileUse.model_validate(item) for item in from_json(page.content())["data"]]
    return found, page.has_more


def _read(visit: Visit, file: FileRow, limit: int) -> RowsPart:
    """Read rows. The database connection is released before the storage is read, because the
    storage may be slow."""
    visit.session.close()
    try:
        page = file_rows.read_page(
            visit.state.storage, file, after=visit.query("after") or None,
            offset=max(_line(visit), 1) - 1, limit=limit, text=_text(visit) or None,
        )  # fmt: skip
    except BadRequest as error:
        return RowsPart(problem=error)
    except FileNotFoundError:
        return RowsPart(problem=content_missing(file.filename))
    found = from_json(page.content())
    shown = [ShownRow.of(DataRow.model_validate(item)) for item in found["data"]]
    return RowsPart(rows=shown, behind=found["last_id"] if page.has_more else "")


def _line(visit: Visit) -> int:
    """Return the line from which rows are shown; 0 if the address has no line."""
    text = visit.query("line")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LINE_DIGITS else 0


def _text(visit: Visit) -> str:
    return visit.query("q").strip()[:_MAX_TEXT]


def _address(file_id: str, query: dict[str, str]) -> str:
    chosen = urlencode({name: value for name, value in query.items() if value})
    return f"{data.HERE}/{file_id}/rows?{chosen}"


def _calls(file_id: str) -> list[Call]:
    path = f"/v1/files/{file_id}"
    return [
        Call(
            path=path, sdk=f"client.files.retrieve({file_id!r})",
            cli=f"tunesmith files show {file_id}",
        ),
        Call(
            path=f"{path}/rows", sdk=f"client.files.rows({file_id!r})",
            cli=f"tunesmith files rows {file_id}",
        ),
        Call(
            path=f"{path}/uses", sdk=f"client.files.uses({file_id!r})",
            cli=f"tunesmith files uses {file_id}",
        ),
        Call(
            path=f"{path}/stats", sdk=f"client.files.stats({file_id!r})",
            cli=f"tunesmith files stats {file_id}",
        ),
        Call(
            path=f"{path}/overlap?with=OTHER", sdk=f"client.files.overlap({file_id!r}, other)",
            cli=f"tunesmith files overlap {file_id} OTHER",
        ),
    ]  # fmt: skip


_ROWS_ROUTE = f"{_FILE}/rows"
PAGES = [
    Page(
        path=f"{data.HERE}/first", show=first_rows, needs=("GET /files", _ROWS_ROUTE), is_bulk=True
    ),
    Page(path=_HERE, show=show, needs=(_FILE, f"{_FILE}/uses", f"{_FILE}/stats", "GET /files")),
    Page(path=f"{_HERE}/rows", show=rows, needs=(_ROWS_ROUTE,), is_bulk=True),
    Page(path=f"{_HERE}/rows.csv", show=rows_table, needs=(_ROWS_ROUTE,), is_bulk=True),
    Page(path=f"{_HERE}/lengths.csv", show=lengths_table, needs=(f"{_FILE}/stats",)),
    Page(path=f"{_HERE}/overlap", show=overlap, needs=(f"{_FILE}/overlap",), is_bulk=True),
    Page(path=f"{_HERE}/uses.csv", show=uses_table, needs=(f"{_FILE}/uses",)),
    Page(path=f"{_HERE}/problems.csv", show=problems_table, needs=(_FILE,)),
    Page(path=f"{_HERE}/content", show=download, needs=(f"{_FILE}/content",), is_bulk=True),
    Page(path=f"{_HERE}/delete", method="POST", show=delete, needs=("DELETE /files/{file_id}",)),
]
