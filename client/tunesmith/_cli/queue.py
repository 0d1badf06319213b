"""`tunesmith top` (devices and queue), `why` (why a job waits) and `usage` (device-hours)."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tunesmith._sdk.client import Client
from tunesmith_schema import TERMINAL, QueuedJob, WorkerState, WorkerStatus

from .job_view import start_text, state_text
from .jobs import JobId
from .output import AsJson, duration, show_fields, show_json, show_table
from .session import connected

_STYLES = {
    WorkerState.IDLE: "green",
    WorkerState.NOT_READY: "red",
    WorkerState.DRAINED: "yellow",
    WorkerState.GONE: "red",
}


class UsageGroup(StrEnum):
    """Groups of `tunesmith usage`."""

    PROJECT = "project"
    USER = "user"
    MODEL = "model"
    DAY = "day"


def top(
    ctx: typer.Context,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between updates.")] = 2.0,
    limit: Annotated[int, typer.Option(min=0, max=1000, help="Waiting jobs to show.")] = 15,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the devices, their jobs and the queue, live."""
    with connected(ctx) as client:
        if as_json:
            show_json(client.queue.retrieve(limit=limit))
            return
        console = Console(markup=False, highlight=False, emoji=False)
        if once or not sys.stdout.isatty():
            console.print(_screen(client, limit))
            return
        with Live(_screen(client, limit), console=console, screen=True) as live:
            while True:
                time.sleep(interval)
                live.update(_screen(client, limit))


def why(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Show why a job waits, its position in the queue, and its expected start."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.retrieve(job_id)
    because = job.waiting_because
    if as_json:
        show_json(job)
        return
    if because is None:
        ended = "it has ended" if job.state in TERMINAL else "it does not wait"
        typer.echo(f"{job.id} is {state_text(job)}: {ended}")
        return
    show_fields(
        [
            ("id", job.id),
            ("state", state_text(job)),
            ("waits because", f"{because.message} ({because.code})"),
            ("queue position", job.queue_position),
            ("expected start", start_text(job.estimated_start)),
        ]
    )


def usage(
    ctx: typer.Context,
    days: Annotated[int, typer.Option(min=1, max=366, help="Number of days.")] = 30,
    by: Annotated[
        list[UsageGroup] | None, typer.Option(help="Group (default: project). Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show device-hours by project, user, model and day, with lost and idle time."""
    groups = by or [UsageGroup.PROJECT]
    with connected(ctx) as client:
        report = client.usage.retrieve(days=days, group_by=[group.value for group in groups])
    if as_json:
        show_json(report)
        return
    rows = [
        (
            *(getattr(item, group.value) or "" for group in groups),
            _hours(item.device_seconds),
            _hours(item.lost_seconds),
        )
        for item in report.data
    ]
    show_table((*(group.value.upper() for group in groups), "DEVICE-HOURS", "LOST"), rows)
    typer.echo(
        f"{report.days} days: {_hours(report.device_seconds)} device-hours, "
        f"{_hours(report.lost_seconds)} of them lost; idle devices: {_hours(report.idle_seconds)}"
    )


def add_to(app: typer.Typer) -> None:
    for command in (top, why, usage):
        app.command(command.__name__)(command)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"


def _screen(client: Client, limit: int) -> RenderableType:
    queue, workers = client.queue.retrieve(limit=limit), client.workers.list()
    running = {job.worker: job for job in queue.running}
    lanes = _table("DEVICE", "STATE", "JOB", "PROJECT", "STEP", "STEPS/S", "ENDS IN")
    for worker in workers:
        lanes.add_row(*_lane(worker, running.get(worker.id)))
    waiting = _table("#", "WAITING", "PROJECT", "STARTS IN", "BECAUSE")
    for job in queue.waiting:
        start, because = job.estimated_start, job.waiting_because
        waiting.add_row(
            str(job.queue_position or ""),
            job.id or "-",
            job.project,
            _until(start.at) if start else "",
            because.message if because else "",
        )
    title = Text(
        f"{queue.devices} devices, {queue.free_devices} free, {len(queue.running)} jobs running, "
        f"{queue.num_waiting} waiting",
        style="bold",
    )
    return Group(title, Text(), lanes, Text(), waiting if queue.waiting else Text("no job waits"))


def _lane(worker: WorkerStatus, job: QueuedJob | None) -> tuple[RenderableType, ...]:
    state = Text(str(worker.state), _STYLES.get(worker.state, ""))
    if job is None:
        return f"{worker.host} {worker.device}", state, worker.reason or "", "", "", "", ""
    return (
        f"{worker.host} {worker.device}",
        state,
        job.id or "-",
        job.project,
        f"{job.step}/{job.total_steps}" if job.total_steps else "",
        f"{job.steps_per_second:.2f}" if job.steps_per_second else "",
        _until(job.estimated_end) if job.estimated_end else "",
    )


def _until(at: int) -> str:
    return duration(at - time.time())


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
