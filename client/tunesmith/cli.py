"""The `tunesmith` command: client commands, and the commands of server and worker."""

from __future__ import annotations

from typing import Annotated

import typer

from ._cli import (
    about_job,
    adapters,
    chat,
    compare,
    control,
    evaluations,
    files,
    job_links,
    jobs,
    models,
    projects,
    queue,
    samples,
    server_and_worker,
    sessions,
    sharing,
    storage,
    users,
)
from ._cli.session import Connection

app = typer.Typer(
    name="tunesmith",
    help="Fine-tune language models on your own machines.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with locals would print the API key.
    pretty_exceptions_enable=False,
)


@app.callback()
def _connection(
    ctx: typer.Context,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="Base URL of the API, ending in /v1 (default: TUNESMITH_BASE_URL, else "
            "http://127.0.0.1:8000/v1).",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="API key (default: TUNESMITH_API_KEY, else the content of ./.tunesmith/api-key).",
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Project in which an admin key acts (default: the default project)."),
    ] = None,
) -> None:
    ctx.obj = Connection(base_url=base_url, api_key=api_key, project=project)


control.add_to(jobs.app)
about_job.add_to(jobs.app)
job_links.add_to(jobs.app)
compare.add_to(jobs.app)
samples.add_to(jobs.app)
app.add_typer(jobs.app, name="jobs")
app.add_typer(files.app, name="files")
app.add_typer(adapters.app, name="adapters")
sharing.add_to(models.app)
app.add_typer(models.app, name="models")
app.add_typer(projects.app, name="projects")
app.add_typer(users.app, name="users")
app.add_typer(sessions.app, name="sessions")
users.add_to(app)
chat.add_to(app)
evaluations.add_to(app)
queue.add_to(app)
storage.add_to(app)
server_and_worker.add_to(app)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
