"""Page that compares jobs by their curves, results and settings."""

from __future__ import annotations

import csv
import io

from pydantic_core import to_json
from starlette.responses import Response

from tunesmith_schema import TERMINAL
from tunesmith_schema.comparison import JobComparison
from tunesmith_server.portal import rendering, security
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.comparing import curves, prompts, tables
from tunesmith_server.portal.comparing.view import AXES, MOST, CompareView, view_of
from tunesmith_server.portal.job import charts, packed
from tunesmith_server.portal.tables import Cell
from tunesmith_server.portal.tables import as_csv as table
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services.results.curves import MAX_POINTS
from tunesmith_server.services.training import comparison

_ROUTE = "GET /fine_tuning/compare"
_NEEDS = (_ROUTE, "GET /fine_tuning/jobs/{job_id}")
_POINTS = 500
"""Number of points of a curve, more than a chart with eight curves can show."""
_RESULTS = (
    "job", "name", "state", "step", "metric", "last", "best", "best_step", "from_the_best_job",
)  # fmt: skip
_KEYS = (
    ("1 2 3", "Show or hide a job"), ("s", "Smooth the curves"), ("l", "Logarithmic scale"),
)  # fmt: skip


def show(visit: Visit) -> Response:
    return _page(visit, "compare/page.html")


def parts(visit: Visit) -> Response:
    """Return only the tables of the page. htmx replaces the old tables by these tables."""
    return _page(visit, "compare/_tables.html", oob=True)


def _page(visit: Visit, template: str, *, oob: bool = False) -> Response:
    view = view_of(visit)
    if not view.is_complete:
        return visit.show("compare/none.html", view=view, most=MOST, page_keys=())
    rows = comparison.find(visit.session, view.job_ids)
    found = comparison.compare(visit.session, rows, axis=view.axis, points=charts.POINTS)
    names = [tables.name_of(job) for job in found.jobs]
    return visit.show(
        template,
        calls=[_call(view)],
        page_keys=_KEYS,
        view=view,
        oob=oob,
        axes=AXES,
        names=names,
        compared=found.jobs,
        watched=["" if row.state in TERMINAL else f"{row.id}:{row.last_seq}" for row in rows],
        drawn=curves.drawn(found, names),
        results=tables.results(found),
        metrics=tables.METRICS,
        settings=tables.settings(found),
        evaluations=tables.evaluations(found.jobs),
        chart_size=(charts.WIDTH, charts.HEIGHT),
        has_completions=any(job.results.keys() & {"reward"} for job in found.jobs),
    )


def as_json(visit: Visit) -> Response:
    """Return the curves in the format of the HTML element `ts-chart`. If the axis shows steps, the
    parameters `from` and `to` select a range of steps. With a range, all points of a curve are
    inside the range, so the curve has more detail."""
    view = view_of(visit)
    steps = (_step(visit, "from"), _step(visit, "to")) if view.axis == "step" else (None, None)
    found = _compare(visit, view, _POINTS, *steps)
    document = packed.document(curves.by_line(found), finer=view.axis == "step")
    return rendering.compressed(visit.request, to_json(document), "application/json")


def as_csv(visit: Visit) -> Response:
    """Return all curves as a table: a row for each point."""
    content = io.StringIO()
    found = _compare(visit, view_of(visit), MAX_POINTS)
    csv.writer(content, lineterminator="\r\n").writerows(curves.table(found))
    headers = {**security.HEADERS, "content-disposition": 'attachment; filename="compare.csv"'}
    return Response(content.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def results_table(visit: Visit) -> Response:
    """Return a CSV file of the last and best values, with a row for each job and metric."""
    found = _compare(visit, view_of(visit), charts.POINTS)
    rows: list[list[Cell]] = [
        [job.id, tables.name_of(job), job.state, job.step, metric, result.last, result.best,
         result.best_step, result.difference]
        for metric, results in tables.results(found).items()
        for job, result in zip(found.jobs, results, strict=True)
    ]  # fmt: skip
    return table("compare-results", _RESULTS, rows)


def settings_table(visit: Visit) -> Response:
    """Return a CSV file of the settings that differ, with a column for each job."""
    found = _compare(visit, view_of(visit), charts.POINTS)
    rows = ([item.name, *item.texts] for item in tables.settings(found))
    return table("compare-settings", ["setting", *(job.id for job in found.jobs)], rows)


def completions(visit: Visit) -> Response:
    """Show the completions of one prompt, with one column per job."""
    view = view_of(visit)
    rows = comparison.find(visit.session, view.job_ids)
    return visit.show(
        "compare/_completions.html" if visit.is_part else "compare/completions.html",
        view=view,
        found=prompts.read(visit.session, visit.state.storage, rows, view.row),
    )


def _compare(
    visit: Visit,
    view: CompareView,
    points: int,
    first: int | None = None,
    last: int | None = None,
) -> JobComparison:
    rows = comparison.find(visit.session, view.job_ids)
    return comparison.compare(
        visit.session, rows, axis=view.axis, points=points, first=first, last=last
    )


def _step(visit: Visit, name: str) -> int | None:
    text = visit.query(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _call(view: CompareView) -> Call:
    names = list(view.job_ids)
    return Call(
        path=f"/v1/fine_tuning/compare?{view.query}",
        sdk=f"client.fine_tuning.compare({names!r}, axis={view.axis!r})",
        cli=f"tunesmith jobs compare {' '.join(names)}",
    )


_SAMPLES = "GET /fine_tuning/jobs/{job_id}/samples"
PAGES = [
    Page(path="/portal/compare", show=show, needs=_NEEDS),
    Page(path="/portal/compare/parts", show=parts, needs=_NEEDS),
    Page(path="/portal/compare/curves", show=as_json, needs=(_ROUTE,)),
    Page(path="/portal/compare/curves.csv", show=as_csv, needs=(_ROUTE,)),
    Page(path="/portal/compare/results.csv", show=results_table, needs=(_ROUTE,)),
    Page(path="/portal/compare/settings.csv", show=settings_table, needs=(_ROUTE,)),
    Page(path="/portal/compare/completions", show=completions, needs=(_SAMPLES,), is_bulk=True),
]
