"""`tunesmith jobs share|links|unshare`: links that show a job without a sign-in."""

from __future__ import annotations

from typing import Annotated

import typer

from tunesmith_schema.job_links import DAY_SECONDS

from .jobs import JobId
from .output import AsJson, age, moment, show_done, show_json, show_page_json, show_table
from .session import connected


def share(
    ctx: typer.Context,
    job_id: JobId,
    days: Annotated[int, typer.Option(min=1, max=365, help="Days until the link expires.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Make a link that shows name, state, last loss and curve of a job without a sign-in."""
    with connected(ctx) as client:
        link = client.fine_tuning.jobs.links.create(job_id, expires_in_seconds=days * DAY_SECONDS)
        address = client.base_url.removesuffix("/v1") + link.path
    if as_json:
        show_json(link)
    else:
        typer.echo(f"{address}\nThe link is shown only here.")


def links(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """List the links that show a job."""
    with connected(ctx) as client:
        page = client.fine_tuning.jobs.links.list(job_id)
    if as_json:
        show_page_json(page.data, has_more=False)
        return
    rows = [(x.id, x.key_id, age(x.created_at), moment(x.expires_at)) for x in page.data]
    show_table(("LINK", "KEY", "MADE", "EXPIRES"), rows)


def unshare(
    ctx: typer.Context,
    job_id: JobId,
    link_id: Annotated[str, typer.Argument(metavar="LINK", help="link-...")],
    as_json: AsJson = False,
) -> None:
    """Revoke a link immediately."""
    with connected(ctx) as client:
        revoked = client.fine_tuning.jobs.links.delete(link_id, job_id=job_id)
    show_done(revoked, as_json, f"{link_id} is revoked")


def add_to(app: typer.Typer) -> None:
    app.command("share")(share)
    app.command("links")(links)
    app.command("unshare")(unshare)
