"""`tunesmith sessions`: sign-ins to the portal with your keys."""

from __future__ import annotations

from typing import Annotated

import typer

from tunesmith_schema import PortalSession

from .output import AsJson, age, show_json, show_page_json, show_table
from .session import connected

app = typer.Typer(help="Sign-ins to the portal.", no_args_is_help=True)


@app.command("list")
def list_sessions(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the browsers and screens that are signed in with your keys."""
    with connected(ctx) as client:
        page = client.sessions.list()
    if as_json:
        show_page_json(page.data, has_more=False)
    else:
        show_table(("SESSION", "KIND", "WHERE", "LAST SEEN"), map(_row, page.data))


def _row(session: PortalSession) -> tuple[str, ...]:
    where = (session.name or session.user_agent or "-")[:40]
    return session.id, session.kind, where, age(session.last_seen_at)


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the screen.")],
    as_json: AsJson = False,
) -> None:
    """Make a link that shows the portal on a screen: read-only, for 90 days."""
    with connected(ctx) as client:
        session = client.sessions.create(name=name)
        address = client.base_url.removesuffix("/v1") + session.path
    if as_json:
        show_json(session)
    else:
        typer.echo(f"{address}\nThe link is shown only here.")


@app.command("end")
def end(
    ctx: typer.Context,
    session_id: Annotated[str, typer.Argument(metavar="SESSION")],
    as_json: AsJson = False,
) -> None:
    """End a sign-in immediately."""
    with connected(ctx) as client:
        ended = client.sessions.delete(session_id)
    if as_json:
        show_json(ended)
    else:
        typer.echo(f"{session_id} has ended")
