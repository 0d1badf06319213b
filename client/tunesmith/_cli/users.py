"""`tunesmith users` and `tunesmith whoami`."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import AsJson, Limit, age, moment, show_done, show_fields, show_json, show_page
from .session import connected

app = typer.Typer(help="People who use the service.", no_args_is_help=True)

UserId = Annotated[str, typer.Argument(metavar="USER", help="user-...")]


@app.command("list")
def list_users(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List users."""
    with connected(ctx) as client:
        show_page(
            client.admin.organization.users.list(limit=limit),
            as_json,
            ("ID", "E-MAIL", "NAME", "ROLE", "AGE"),
            lambda item: (item.id, item.email, item.name, item.role, age(item.added_at)),
        )


@app.command("add")
def add(
    ctx: typer.Context,
    email: Annotated[str, typer.Argument(help="E-mail address.")],
    name: Annotated[str, typer.Argument(help="Name of the person.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="Allow everything in all projects.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a person."""
    with connected(ctx) as client:
        user = client.admin.organization.users.create(
            email=email, name=name, role="admin" if admin else "member"
        )
        show_done(user, as_json, f"{user.id}  {user.email}")


@app.command("delete")
def delete(ctx: typer.Context, user_id: UserId, as_json: AsJson = False) -> None:
    """Delete a user and revoke the user's keys."""
    with connected(ctx) as client:
        deleted = client.admin.organization.users.delete(user_id)
        show_done(deleted, as_json, f"deleted {deleted.id}")


def add_to(app: typer.Typer) -> None:
    app.command("whoami")(_whoami)


def _whoami(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the owner of the key, the project and the rights in it."""
    with connected(ctx) as client:
        me = client.me()
        if as_json:
            show_json(me)
            return
        show_fields(
            [
                ("name", me.name),
                ("e-mail", me.email),
                ("key", me.key_id),
                ("expires", moment(me.expires_at)),
                ("project", f"{me.project.id}  {me.project.name}"),
                ("role", me.role),
                ("may", ", ".join(me.verbs)),
            ]
        )
