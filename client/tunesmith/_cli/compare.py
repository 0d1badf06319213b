"""`tunesmith jobs compare` and `tunesmith jobs plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

import typer
from rich.console import Console

from tunesmith._sdk.job import Job
from tunesmith._sdk.plot import (
    AXES,
    MAX_POINTS,
    METRICS,
    Plot,
    curve_of,
    panels_of,
    points_of,
    points_of_job,
)
from tunesmith_schema import MetricPoint
from tunesmith_schema.comparison import JobComparison

from .curves import COLOURS, Line, draw
from .job_view import (
    duration_text,
    evaluation_text,
    health_text,
    metrics_text,
    setting_text,
    state_text,
    step_text,
)
from .jobs import JobId
from .output import show_json_value, show_table
from .session import connected

MAX_JOBS = 8
Points = Sequence[MetricPoint]
PngFile = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Save the curves as a picture.")
]


def compare(
    ctx: typer.Context,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID", help="Two to eight jobs.")],
    png: PngFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare the results, evaluations, settings and curves of jobs."""
    if not 2 <= len(job_ids) <= MAX_JOBS:
        raise typer.BadParameter(
            f"got {len(job_ids)} job ids: name 2 to {MAX_JOBS}; `tunesmith jobs list` shows them"
        )
    with connected(ctx) as client:
        jobs = [client.fine_tuning.jobs.retrieve(job_id) for job_id in job_ids]
        found = client.fine_tuning.compare(job_ids, points=MAX_POINTS)
        points = [_points(found, job_id) for job_id in job_ids]
        names = [_name(sign, job) for sign, job in zip(ascii_uppercase, jobs, strict=False)]
        if png is not None:
            Plot(panels_of(dict(zip(names, points, strict=True)))).save(png)
    if as_json:
        different = found.model_dump(mode="json", include={"settings", "automatic", "environment"})
        show_json_value({**different, "results": [_results(job) for job in jobs]})
        return
    signs = ascii_uppercase[: len(jobs)]
    show_table(("", *signs), [("job", *(job.id for job in jobs)), *_result_rows(jobs)])
    typer.echo("")
    rows = [(name, *map(setting_text, values)) for name, values in _different(found).items()]
    if rows:
        show_table(("SETTING", *signs), rows)
    else:
        typer.echo("The settings are equal.")
    _draw(dict(zip(signs, points, strict=True)), [job.suffix or job.id for job in jobs])
    if png is not None:
        typer.echo(f"saved {png}", err=True)


def plot(
    ctx: typer.Context,
    job_id: JobId,
    png: PngFile = None,
) -> None:
    """Draw a job's training and validation curves."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.retrieve(job_id)
        found = client.fine_tuning.jobs.curves(job_id, names=METRICS, points=MAX_POINTS)
        points = points_of_job(found)
        if png is not None:
            Plot(panels_of({job.id: points})).save(png)
    _draw({"*": points}, [job.id])
    if health := health_text(job):
        typer.echo(health)
    if png is not None:
        typer.echo(f"saved {png}", err=True)


def add_to(app: typer.Typer) -> None:
    app.command("compare")(compare)
    app.command("plot")(plot)


def _name(sign: str, job: Job) -> str:
    return f"{sign} {job.suffix or job.id}"


def _points(found: JobComparison, job_id: str) -> list[MetricPoint]:
    """Return one point per step, lowest step first, with the values of all curves of a job."""
    return points_of(
        (metric, map(int, curve.x), curve.values)
        for metric, curves in found.curves.items()
        for curve in curves
        if curve.job_id == job_id
    )


def _different(found: JobComparison) -> dict[str, list[Any]]:  # Any: JSON
    """Return the differences between the jobs, keyed by name: settings, values chosen for "auto",
    and environment."""
    automatic = {f"{name} (auto)": values for name, values in found.automatic.items()}
    return {**found.settings, **automatic, **found.environment}


def _results(job: Job) -> dict[str, str]:
    rows = {
        "name": job.suffix,
        "state": state_text(job),
        "health": health_text(job),
        "evaluation": evaluation_text(job),
        "base, tuned": _figures(job),
        "last metrics": metrics_text(job),
        "step": step_text(job),
        "duration": duration_text(job),
    }
    return {"id": job.id} | {name: value for name, value in rows.items() if value}


def _figures(job: Job) -> str | None:
    found = job.evaluation
    if found is None:
        return None
    values = ["-" if value is None else f"{value:.4g}" for value in (found.base, found.tuned)]
    return f"{found.metric} {', '.join(values)}"


def _result_rows(jobs: Sequence[Job]) -> list[tuple[str, ...]]:
    results = [_results(job) for job in jobs]
    names = dict.fromkeys(name for result in results for name in result if name != "id")
    return [(name, *(result.get(name, "-") for result in results)) for name in names]


def _draw(jobs: Mapping[str, Points], names: Sequence[str]) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    for label, train, valid in AXES:
        lines = []
        for number, (sign, points) in enumerate(jobs.items()):
            is_reward = any("reward" in point.values for point in points)
            if is_reward == (train == "train_loss"):
                continue
            colour = COLOURS[number % len(COLOURS)]
            for metric in (train, valid):
                steps, values = curve_of(points, metric)
                is_valid = metric == valid
                kind = "validation" if is_valid else "training"
                shown = ("o" if sign == "*" else sign.lower()) if is_valid else sign
                line = Line(
                    name=f"{names[number]}, {kind}",
                    sign=shown,
                    steps=steps,
                    values=values,
                    colour=colour,
                    is_joined=not is_valid,
                )
                lines.append(line)
        if any(line.values for line in lines):
            console.print()
            console.print(draw(lines, label), soft_wrap=True)
