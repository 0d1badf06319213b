"""`tunesmith models share` and `unshare`."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import AsJson, show_json_value
from .session import connected, fail

Model = Annotated[str, typer.Argument(help="Tuned model or checkpoint of your project.")]
Projects = Annotated[list[str], typer.Argument(metavar="PROJECT...", help="proj-...")]


def add_to(app: typer.Typer) -> None:
    app.command("share")(_share)
    app.command("unshare")(_unshare)


def _share(ctx: typer.Context, model: Model, projects: Projects, as_json: AsJson = False) -> None:
    """Let other projects use a tuned model."""
    with connected(ctx) as client:
        page = client.fine_tuning.checkpoints.permissions.create(model, project_ids=projects)
        shared = [item.project_id for item in page.data]
        if as_json:
            show_json_value({"model": model, "project_ids": shared})
        else:
            typer.echo(f"{model} can be used by {', '.join(shared)}")


def _unshare(ctx: typer.Context, model: Model, projects: Projects, as_json: AsJson = False) -> None:
    """Withdraw the permission of projects to use a tuned model."""
    with connected(ctx) as client:
        permissions = client.fine_tuning.checkpoints.permissions
        known = {item.project_id: item.id for item in permissions.list(model, limit=100)}
        missing = [project for project in projects if project not in known]
        if missing:
            fail(f"{model} is not shared with {', '.join(missing)}")
        for project in projects:
            permissions.delete(known[project], model=model)
        if as_json:
            show_json_value({"model": model, "withdrawn": projects})
        else:
            typer.echo(f"{model} can no longer be used by {', '.join(projects)}")
