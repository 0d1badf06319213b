"""The `tunesmith` command: API verbs here, and the other parts' verbs, which it execs."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _cli_adapters, _cli_control, _cli_exec, _cli_files, _cli_jobs, _cli_samples
from ._cli_session import Connection

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
            help="The server's API, by default TUNESMITH_BASE_URL, else http://127.0.0.1:8000/v1.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="By default TUNESMITH_API_KEY, else what ./.tunesmith/api-key holds.",
        ),
    ] = None,
) -> None:
    ctx.obj = Connection(base_url=base_url, api_key=api_key)


_cli_control.add_to(_cli_jobs.app)
_cli_samples.add_to(_cli_jobs.app)
app.add_typer(_cli_jobs.app, name="jobs")
app.add_typer(_cli_files.app, name="files")
app.add_typer(_cli_adapters.adapters, name="adapters")
app.add_typer(_cli_adapters.models, name="models")
_cli_exec.add_to(app)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
