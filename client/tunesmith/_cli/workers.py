"""`tunesmith worker list|drain|undrain`: commands for all workers of the service, through the API.

The module server_and_worker.py has the commands for this host: `tunesmith worker` starts a worker,
and `tunesmith worker drain` without a name drains the workers of this host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tunesmith_schema import WorkerState, WorkerStatus

from .output import AsJson, age, show_json, show_page_json, show_table, size
from .session import connected

_app = typer.Typer(help="Training workers of the service.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Id of a worker, or name of a host.")]


def is_remote(arguments: Sequence[str]) -> bool:
    """Return True if the arguments of `tunesmith worker` are a command of this module."""
    command, *rest = arguments or [""]
    if command == "drain":
        return any(not one.startswith("-") for one in rest)
    return command in ("list", "undrain")


def run(ctx: typer.Context) -> None:
    """Run a command of this module with the global options of `ctx`."""
    command = typer.main.get_command(_app)
    command.main(args=list(ctx.args), prog_name="tunesmith worker", obj=ctx.obj)


@_app.command("list")
def list_workers(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the training workers: device, running job, and the reason if a worker takes no job."""
    with connected(ctx) as client:
        workers = client.workers.list()
    if as_json:
        show_page_json(workers, has_more=False)
    else:
        show_table(("WORKER", "HOST", "DEVICE", "STATE", "JOB"), map(_row, workers))


@_app.command("drain")
def drain(
    ctx: typer.Context,
    name: Name,
    reason: Annotated[str, typer.Option(help="Reason, shown to users whose jobs wait.")] = "",
    as_json: AsJson = False,
) -> None:
    """Start no more jobs on a worker or host. The running jobs save a resume point and are queued
    again."""
    with connected(ctx) as client:
        reservation = client.workers.drain(name, reason=reason)
    if as_json:
        show_json(reservation)
    else:
        typer.echo(f"draining {name}; end it with: tunesmith worker undrain {name}")


@_app.command("undrain")
def undrain(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Let a drained worker or host take jobs again."""
    with connected(ctx) as client:
        ended = client.workers.undrain(name)
    if as_json:
        show_page_json(ended, has_more=False)
    else:
        typer.echo(f"{name} takes jobs again" if ended else f"{name} was not drained")


def _row(worker: WorkerStatus) -> tuple[str, ...]:
    memory = f", {size(worker.device_bytes)}" if worker.device_bytes else ""
    doing = worker.job_id or (f"a job of {worker.project}" if worker.project else "")
    if worker.state is WorkerState.GONE:
        doing = f"last report {age(worker.last_hello)} ago"
    return (
        worker.id,
        worker.host,
        f"{worker.device}{memory}",
        str(worker.state),
        doing or worker.reason or "",
    )
