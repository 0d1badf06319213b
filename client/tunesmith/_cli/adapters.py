"""`tunesmith adapters`: trained weights and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .output import AsJson, Limit, age, moment, show_fields, show_json, show_page, size
from .server_and_worker import verify_adapter
from .session import connected

app = typer.Typer(
    help="Trained adapters, or whole models after full fine-tuning.",
    no_args_is_help=True,
)

AdapterId = Annotated[str, typer.Argument(metavar="ID", help="adp-...")]


@app.command("list")
def list_adapters(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List results and checkpoints of all jobs, newest first."""
    with connected(ctx) as client:
        show_page(
            client.adapters.list(limit=limit),
            as_json,
            ("ID", "MODEL", "KIND", "SIZE", "AGE"),
            lambda one: (one.id, one.model, one.kind, size(one.bytes), age(one.created_at)),
        )


@app.command("show")
def show(ctx: typer.Context, adapter_id: AdapterId, as_json: AsJson = False) -> None:
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


@app.command("verification")
def verification(ctx: typer.Context, adapter_id: AdapterId, as_json: AsJson = False) -> None:
    """Show how close the stored files are to the model that was trained."""
    with connected(ctx) as client:
        verdict = client.adapters.verification(adapter_id)
    if as_json:
        show_json(verdict)
        return
    show_fields(
        [
            ("largest difference", f"{verdict.max_difference:g} of a logit"),
            ("tolerance", f"{verdict.tolerance:g} ({verdict.rule})"),
            ("step", verdict.step),
            ("base model", verdict.base_model),
            ("arithmetic", verdict.arithmetic),
            ("quantization", verdict.quantization),
            ("made with", "\n".join(f"{name} {v}" for name, v in verdict.made_with.items())),
        ]
    )


@app.command("download")
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


@app.command("verify")
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

    The exit status is 1 if the files are not the trained model, and 2 if the files cannot be
    compared."""
    options = ["--base", base] if base is not None else []
    verify_adapter([str(folder), *options, *(["--json"] if as_json else [])])
