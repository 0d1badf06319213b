"""Charts of compared jobs, and the charts' points as tables. Each metric has one chart, and each
job has one line in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tunesmith_schema.comparison import AlignedCurve, JobComparison
from tunesmith_server.portal.job import charts
from tunesmith_server.portal.job.charts import Chart, Curves, Drawn

_TITLES = {
    "train_loss": "Training loss (nats per token)",
    "valid_loss": "Validation loss (nats per token)",
    "reward": "Reward",
    "valid_reward": "Held-out reward",
}
_SEPARATORS = re.compile(r"[,:\s]+")
_MAX_LABEL = 40


def by_line(found: JobComparison) -> Curves:
    """Return the curves in the format of the HTML element `ts-chart`. The keys are names of lines,
    for example `train_loss.2` for the second job."""
    numbers = {job.id: number for number, job in enumerate(found.jobs, 1)}
    return {
        f"{metric}.{numbers[curve.job_id]}": {"steps": curve.x, "values": curve.values}
        for metric, curves in found.curves.items()
        for curve in curves
    }


def drawn(found: JobComparison, names: Sequence[str]) -> list[Drawn]:
    """Return a chart for each metric that a job has. `names`: names of the jobs."""
    lines, shown = by_line(found), []
    main = next((name for name in ("reward", "train_loss") if found.curves.get(name)), "")
    for metric, title in _TITLES.items():
        if curves := found.curves.get(metric):
            chart = Chart(
                title=title,
                series=tuple(
                    (f"{metric}.{number}", _label(name)) for number, name in enumerate(names, 1)
                ),
                is_main=metric == main,
                may_be_log=metric.endswith("loss"),
            )
            rows = _rows(curves, [job.id for job in found.jobs])
            shown.append(replace(charts.drawn(chart, lines), rows=rows))
    return sorted(shown, key=lambda item: not item.chart.is_main)


def table(found: JobComparison) -> list[list[Any]]:  # Any: a cell
    """Return all points as rows of a CSV file."""
    rows: list[list[Any]] = [["metric", "job", found.axis, "value"]]
    for metric, curves in found.curves.items():
        for curve in curves:
            for at, value in zip(curve.x, curve.values, strict=True):
                rows.append([metric, curve.job_id, _plain(at), "" if value is None else value])
    return rows


def _plain(at: float) -> float | int:
    return int(at) if at.is_integer() else at


def _label(name: str) -> str:
    """Return a label for the HTML element `ts-chart`. Commas and colons become spaces, because
    `ts-chart` uses them to separate labels."""
    return _SEPARATORS.sub(" ", name).strip()[:_MAX_LABEL] or "–"  # noqa: RUF001  # an en dash


def _rows(
    curves: Sequence[AlignedCurve], job_ids: Sequence[str]
) -> list[tuple[float | int, list[float | None]]]:
    known = {curve.job_id: curve for curve in curves}
    places = charts.spread(sorted({at for curve in curves for at in curve.x}), charts.TABLE_ROWS)
    return [
        (_plain(at), [_value(known[job], at) if job in known else None for job in job_ids])
        for at in places
    ]


def _value(curve: AlignedCurve, at: float) -> float | None:
    if not curve.x or at > curve.x[-1]:
        return None
    index = bisect_right(curve.x, at) - 1
    return curve.values[index] if index >= 0 else None
