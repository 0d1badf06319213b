"""`tunesmith models`: base models and tuned models."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .control import confirm_deletion
from .output import (
    AsJson,
    Limit,
    age,
    moment,
    show_done,
    show_fields,
    show_json,
    show_page_json,
    show_table,
    show_uses,
    size,
)
from .session import connected

app = typer.Typer(help="Base models and tuned models.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="Base model, tuned model or checkpoint.")]


@app.command("list")
def list_models(
    ctx: typer.Context,
    base: Annotated[
        str | None, typer.Option(help="List the models tuned from this base model.")
    ] = None,
    kind: Annotated[
        Literal["base", "tuned", "lora", "full"] | None,
        typer.Option(help="List base models, tuned models, adapters or full weights only."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="List models with this text in their names.")
    ] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="List the checkpoints of jobs too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List base models and tuned models."""
    with connected(ctx) as client:
        available = list(
            client.models.list(base=base, kind=kind, text=text, checkpoints=checkpoints)
        )
        if as_json:
            show_page_json(available, has_more=False)
            return
        show_table(
            ("MODEL", "AGE", "TUNED FROM"),
            ((model.id, age(model.created), model.base_model or "") for model in available),
        )


@app.command("show")
def show(ctx: typer.Context, model: Model, as_json: AsJson = False) -> None:
    """Show a model: size, context length, the workers that have it, and its adapter."""
    with connected(ctx) as client:
        found = client.models.retrieve(model)
    if as_json:
        show_json(found)
        return
    show_fields(
        [
            ("model", found.id),
            ("kind", found.kind),
            ("base model", found.base_model),
            ("adapter", found.adapter_id),
            ("job", found.job_id),
            ("step", found.step),
            ("created", moment(found.created)),
            ("size", None if found.bytes is None else size(found.bytes)),
            ("context length", found.context_length),
            ("workers", "\n".join(found.workers or [])),
            ("serving", found.serving),
        ]
    )


@app.command("uses")
def uses(ctx: typer.Context, model: Model, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the jobs and evaluations that use a model, newest first."""
    with connected(ctx) as client:
        page = client.models.uses(model, limit=limit)
        if as_json:
            show_page_json(page.data, page.has_more)
            return
        show_uses(page.data)


@app.command("delete")
def delete(
    ctx: typer.Context,
    model: Model,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a tuned model, or one checkpoint, with its files."""
    if not yes:
        confirm_deletion(model, "with its files")
    with connected(ctx) as client:
        show_done(client.models.delete(model), as_json, f"deleted {model}")
