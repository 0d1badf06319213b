"""`tunesmith adapters` and `tunesmith models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .output import (
    AsJson,
    age,
    moment,
    show_fields,
    show_json,
    show_page_json,
    show_table,
    size,
)
from .server_and_worker import verify_adapter
from .session import connected

adapters = typer.Typer(
    help="Trained adapters, or whole models after full fine-tuning.",
    no_args_is_help=True,
)
models = typer.Typer(help="Base models and tuned models.", no_args_is_help=True)


@adapters.command("show")
def show(
    ctx: typer.Context,
    adapter_id: Annotated[str, typer.Argument(metavar="ID", help="adp-...")],
    as_json: AsJson = False,
) -> None:
    """Show an adapter and its files."""
    with connected(ctx) as client:
        adapter = client.adapters.retrieve(adapter_id)
        if as_json:
            show_json(adapter)
            return
        files = [f"{file.name}  {size(file.bytes)}" for file in adapter.files]
        show_fields(
            [
                ("id", adapter.id),
                ("model", adapter.model),
                ("base model", adapter.base_model),
                ("kind", adapter.kind),
                ("job", adapter.job_id),
                ("step", adapter.step),
                ("created", moment(adapter.created_at)),
                ("size", size(adapter.bytes)),
                ("verified", "yes" if adapter.verified else "no"),
                ("files", "\n".join(files)),
            ]
        )


@adapters.command("download")
def download(
    ctx: typer.Context,
    id_or_job: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Adapter id (adp-...), or job id (ftjob-...) for the job's adapter.",
        ),
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
    as_json: AsJson = False,
) -> None:
    """Download an adapter and verify every file by sha256."""
    with connected(ctx) as client:
        path = client.adapters.download(id_or_job, directory)
        if as_json:
            typer.echo(json.dumps({"path": str(path)}))
        else:
            typer.echo(str(path))


@adapters.command("verify")
def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a download.")],
    base: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Folder or Hugging Face id of the base model; default: the name in "
            "adapter_config.json.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load a downloaded adapter with plain PEFT and compare it with the trained model.

    Exit status 1: the files are not the trained model; 2: they cannot be compared."""
    options = ["--base", base] if base is not None else []
    verify_adapter([str(folder), *options, *(["--json"] if as_json else [])])


@models.command("list")
def list_models(
    ctx: typer.Context,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="List the checkpoints of jobs too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List base models and tuned models."""
    with connected(ctx) as client:
        available = list(client.models.list(checkpoints=checkpoints))
        if as_json:
            show_page_json(available, has_more=False)
            return
        show_table(
            ("MODEL", "AGE", "TUNED FROM"),
            ((model.id, age(model.created), model.base_model or "") for model in available),
        )
