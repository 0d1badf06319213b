"""`tunesmith audit search`, which searches the audit log through the API.

server_and_worker.py starts `tunesmith audit list` and `tunesmith audit verify`, which read the
database on the API's host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tunesmith_schema import AuditLogEntry

from .output import AsJson, Limit, moment, show_page_json
from .session import connected

_app = typer.Typer(help="Search the audit log.", no_args_is_help=True)


@_app.callback()
def _group() -> None:
    """Search the audit log."""


def is_remote(arguments: Sequence[str]) -> bool:
    """Return True if the arguments of `tunesmith audit` are a command of this module."""
    return arguments[:1] == ["search"]


def run(ctx: typer.Context) -> None:
    """Run a command of this module with the global options of `ctx`."""
    command = typer.main.get_command(_app)
    command.main(args=list(ctx.args), prog_name="tunesmith audit", obj=ctx.obj)


@_app.command("search")
def search(
    ctx: typer.Context,
    project_id: Annotated[
        str | None, typer.Option("--project", help="Project of the requests: proj-...")
    ] = None,
    actor: Annotated[
        str | None, typer.Option(help="Key or user that acted: key-... or user-...")
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="First part of the action, for example `DELETE /files`.")
    ] = None,
    changed: Annotated[
        str | None, typer.Option("--object", help="Id of an object that was read or changed.")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List entries of the audit log, newest first. Needs an admin key."""
    with connected(ctx) as client:
        page = client.admin.organization.audit_logs.list(
            project_id=project_id, actor_id=actor, action=action, object_id=changed, limit=limit
        )
        if as_json:
            show_page_json(page.data, page.has_more)
        else:
            for entry in page.data:
                typer.echo(_line(entry))


def _line(entry: AuditLogEntry) -> str:
    caller = entry.user_id or entry.key_id or "on the host"
    named = " ".join(str(value) for value in entry.target.values())
    time = moment(int(entry.at))
    return f"{entry.seq}  {time}  {caller}  {entry.address or '-'}  {entry.action}  {named}"
