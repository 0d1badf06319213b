"""List of data sets, with the methods that can use a file and the number of its uses."""

from __future__ import annotations

from typing import get_args
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.responses import Response

from tunesmith_schema import ErrorCode, FileObject, FilePurpose, MethodName
from tunesmith_server.api.files import store_upload
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.tables import Cell, as_csv
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.data import files
from tunesmith_server.services.pages import PageBuilder

HERE = "/portal/data"
_ROWS = 50
_MOST = 10_000
"""Maximum number of files in a downloaded table; it is also the maximum of one API call."""
_MAX_TEXT = 200
_KEYS = (
    ("u", "Upload a file"),
    ("/", "Search"),
    ("j k", "Next or previous file"),
    ("o", "Open the file"),
)


def show(visit: Visit) -> Response:
    """Show the list; show only its table if the search changed."""
    text = _text(visit)
    page = _list(visit, text, _ROWS, visit.query("after"))
    found = _files_of(page)
    query = {"q": text} if text else {}
    last = found[-1].id if found else ""
    return visit.show(
        "data/list.html",
        files=found,
        text=text,
        here=f"{HERE}?{urlencode({**query, 'after': visit.query('after')})}",
        table=f"{HERE}.csv?{urlencode(query)}" if text else f"{HERE}.csv",
        next_page=f"{HERE}?{urlencode({**query, 'after': last})}" if page.has_more else "",
        usable_for=usable_for,
        format_of=format_of,
        problems_of=problems_of,
        may_write=may_write(visit),
        max_bytes=visit.state.settings.max_file_bytes,
        calls=[_call(text)],
        page_keys=_KEYS if may_write(visit) else _KEYS[1:],
    )


def table(visit: Visit) -> Response:
    """Return a CSV file of the listed data sets."""
    found = _files_of(_list(visit, _text(visit), _MOST, ""))
    header = ("id", "name", "status", "rows", "bytes", "format", "usable_for", "uses", "problems",
              "created_at", "sha256")  # fmt: skip
    return as_csv("data-sets", header, map(_cells, found))


def _cells(file: FileObject) -> list[Cell]:
    found = file.validation
    return [
        file.id, file.filename, file.status, found.rows if found else None, file.bytes,
        format_of(file), " ".join(usable_for(file)), file.num_uses, problems_of(file),
        file.created_at, file.sha256,
    ]  # fmt: skip


def upload(visit: Visit) -> Response:
    """Store a file and show the file's page. If there is already a file with the same content and
    format, show that file's page."""
    file = visit.form.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST, "no file was chosen", param="file",
            hint="choose a file with one example in each line",
        )  # fmt: skip
    stored, is_known = store_upload(
        visit.state, visit.session, visit.principal, content=file.file,
        filename=file.filename, purpose=FilePurpose.FINE_TUNE,
        reuses=True,
    )  # fmt: skip
    return visit.go(f"{HERE}/{stored.id}{'?known=1' if is_known else ''}")


def usable_for(file: FileObject) -> list[str]:
    """Return the methods that can use a file; an empty result before the file has been
    validated."""
    found = file.validation
    return [name for name in get_args(MethodName) if found and not found.unusable_reason(name)]


def format_of(file: FileObject) -> str | None:
    """Return the format of the rows; None if the format is unknown."""
    found = file.validation
    return (found.format or found.prompt_format) if found else None


def problems_of(file: FileObject) -> int | None:
    """Return the number of bad rows if no method can use the file, else 0; None before the
    validation."""
    found = file.validation
    if found is None:
        return None
    return 0 if found.ok else found.num_problems


def may_write(visit: Visit) -> bool:
    is_display = visit.signed_in is not None and visit.signed_in.kind == "display"
    return "write" in visit.principal.verbs and not is_display


def _text(visit: Visit) -> str:
    return visit.query("q").strip()[:_MAX_TEXT]


def _list(visit: Visit, text: str, limit: int, after: str) -> PageBuilder:
    return files.list_files(
        visit.session, after=after or None, limit=limit, order="desc",
        purpose=FilePurpose.FINE_TUNE, text=text or None, with_uses=True,
    )  # fmt: skip


def _files_of(page: PageBuilder) -> list[FileObject]:
    return [FileObject.model_validate(item) for item in from_json(page.content())["data"]]


def _call(text: str) -> Call:
    query = urlencode(
        {"purpose": "fine-tune", "include": "num_uses"} | ({"q": text} if text else {})
    )
    search = f"q={text!r}, " if text else ""
    return Call(
        path=f"/v1/files?{query}",
        sdk=f'client.files.list({search}purpose="fine-tune", include="num_uses")',
        cli=f"tunesmith files list --text {text!r}" if text else "tunesmith files list",
    )


PAGES = [
    Page(path=HERE, show=show, needs=("GET /files",)),
    Page(path=f"{HERE}.csv", show=table, needs=("GET /files",)),
    Page(
        path=f"{HERE}/upload", method="POST", show=upload, needs=("POST /files",), is_bulk=True,
        takes_file=True,
    ),
]  # fmt: skip
