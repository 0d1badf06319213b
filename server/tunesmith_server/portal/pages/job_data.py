"""Data of a job for scripts and downloads: curves as JSON and CSV, result files, weights."""

from __future__ import annotations

import csv
import io
from typing import Any

from pydantic_core import from_json, to_json
from starlette.responses import Response, StreamingResponse

from tunesmith_schema import ErrorCode
from tunesmith_server.api.files import send_or_redirect
from tunesmith_server.core.errors import NotFound
from tunesmith_server.portal import rendering, security
from tunesmith_server.portal.job import packed
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.catalogue import adapters
from tunesmith_server.services.data import files
from tunesmith_server.services.results import curves, result_files
from tunesmith_server.services.training import job_files, jobs

_JOB = "GET /fine_tuning/jobs/{job_id}"
_MAX_NAMES = 2000
_LAST_STEP = 2**31 - 1
_POINTS = 600
"""Number of points of a curve on the page: the minimum and the maximum of 300 intervals. After a
zoom, the page fetches the points of the shown range."""


def as_json(visit: Visit) -> Response:
    """Return the curves `names` between the steps `from` and `to` in the format of the portal's
    script chart.js."""
    measured = from_json(_columns(visit, _POINTS))
    document = packed.document(measured["curves"], measured["void"], finer=True)
    return rendering.compressed(visit.request, to_json(document), "application/json")


def as_csv(visit: Visit) -> Response:
    """Return the curves as a table. Each step at which a curve has a value is one row."""
    measured: dict[str, Any] = from_json(_columns(visit, curves.MAX_POINTS))["curves"]
    known = {
        name: dict(zip(curve["steps"], curve["values"], strict=True))
        for name, curve in measured.items()
    }
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    writer.writerow(["step", *known])
    for step in sorted({step for column in known.values() for step in column}):
        cells = (column.get(step) for column in known.values())
        writer.writerow([step, *("" if cell is None else repr(cell) for cell in cells)])
    headers = _headers(f"{visit.param('job_id')}-curves.csv")
    return Response(table.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _columns(visit: Visit, points: int) -> bytes:
    job = jobs.retrieve(visit.session, visit.param("job_id"))
    names = [name for name in visit.query("names")[:_MAX_NAMES].split(",") if name]
    return curves.columns(
        visit.session, job, names=names or None, points=points, first=_step(visit, "from"),
        last=_step(visit, "to"),
    )  # fmt: skip


def _step(visit: Visit, name: str) -> int | None:
    text = visit.query(name)
    is_number = text.isascii() and text.isdigit() and len(text) < 11
    return min(int(text), _LAST_STEP) if is_number else None


def download_file(visit: Visit) -> Response:
    """Return the content of a file of the job: a data file, or the CSV file of its metrics."""
    job = jobs.retrieve(visit.session, visit.param("job_id"))
    file_id = visit.param("file_id")
    if file_id in (job.training_file, job.validation_file):
        row = files.retrieve(visit.session, file_id)
        return _safe(send_or_redirect(visit.state, row.sha256, row.bytes, row.filename, None))
    if result_files.job_of(visit.session, file_id) is job:
        content = result_files.content(visit.session, job)
        return Response(content, media_type="text/csv", headers=_headers(f"{job.id}-metrics.csv"))
    raise _missing(job.id, file_id)


def download_made(visit: Visit) -> Response:
    """Return a file that is made from stored rows: the recipe, the environment or the log."""
    job = jobs.retrieve(visit.session, visit.param("job_id"))
    name = visit.param("file_name")
    content, media_type = job_files.content(visit.session, visit.state.storage, job, name)
    return Response(content, media_type=media_type, headers=_headers(f"{job.id}-{name}"))


def download_weights(visit: Visit) -> Response:
    """Return the files of a result or a checkpoint as a tar."""
    row = adapters.retrieve(visit.session, visit.param("adapter_id"))
    if row.job_id != visit.param("job_id"):
        raise _missing(visit.param("job_id"), row.id)
    headers = {**_headers(f"{row.id}.tar"), "content-length": str(adapters.tar_bytes(row))}
    pieces = adapters.tar_stream(row, visit.state.storage)
    return StreamingResponse(pieces, media_type="application/x-tar", headers=headers)


def _missing(job_id: str, file_id: str) -> NotFound:
    return NotFound(
        ErrorCode.NOT_FOUND,
        f"job {job_id!r} has no file {file_id!r}",
        hint="the page of the job lists its files",
    )


def _safe(response: Response) -> Response:
    for name, value in security.HEADERS.items():
        response.headers[name] = value
    return response


def _headers(filename: str) -> dict[str, str]:
    return {**security.HEADERS, "content-disposition": f'attachment; filename="{filename}"'}


PAGES = [
    Page(path="/portal/jobs/{job_id}/curves", show=as_json, needs=(f"{_JOB}/metrics",)),
    Page(path="/portal/jobs/{job_id}/curves.csv", show=as_csv, needs=(f"{_JOB}/metrics",)),
    Page(
        path="/portal/jobs/{job_id}/files/{file_id}",
        show=download_file,
        needs=("GET /files/{file_id}/content",),
        is_bulk=True,
    ),
    Page(
        path="/portal/jobs/{job_id}/made/{file_name}",
        show=download_made,
        needs=(f"{_JOB}/files/{{file_name}}",),
    ),
    Page(
        path="/portal/jobs/{job_id}/weights/{adapter_id}",
        show=download_weights,
        needs=("GET /adapters/{adapter_id}/content",),
        is_bulk=True,
    ),
]
