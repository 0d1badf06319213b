"""`tunesmith jobs edit|lineage|self-check|files`: notes, origin and results, checks, files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from tunesmith_schema.lineage import RelatedJob

from .jobs import JobId
from .metadata import MetadataPairs, build_metadata
from .output import (
    AsJson,
    moment,
    show_fields,
    show_json,
    show_page_json,
    show_table,
    size,
    visible,
)
from .session import connected


def edit(
    ctx: typer.Context,
    job_id: JobId,
    name: Annotated[
        str | None, typer.Option(help="Display name; an empty text removes it.")
    ] = None,
    notes: Annotated[
        str | None, typer.Option(help="Notes of the team; an empty text removes them.")
    ] = None,
    pin: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="Pin the job, or remove the pin.")
    ] = None,
    metadata: MetadataPairs = None,
    as_json: AsJson = False,
) -> None:
    """Change name, notes, pin or metadata of a job, in any state. --metadata replaces all pairs."""
    given: dict[str, Any] = {}  # Any: JSON
    if name is not None:
        given["name"] = name or None
    if notes is not None:
        given["notes"] = notes or None
    if pin is not None:
        given["pinned"] = pin
    if metadata:
        given["metadata"] = build_metadata(metadata)
    if not given:
        raise typer.BadParameter("nothing to change: use --name, --notes, --pin or --metadata")
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.edit(job_id, **given)
    if as_json:
        show_json(job)
    else:
        typer.echo(f"changed {', '.join(given)} of {job.id}")


def lineage(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Show base model and data of a job, its origin, forks, retries, results and resume points."""
    with connected(ctx) as client:
        found = client.fine_tuning.jobs.lineage(job_id)
        points = client.fine_tuning.jobs.resume_points(job_id)
    if as_json:
        show_json(found)
        return
    show_fields(
        [
            ("base model", found.model),
            ("weights of", found.base_adapter_id),
            ("training file", found.training_file),
            ("validation file", found.validation_file),
            ("fork of", found.forked_from and _text(found.forked_from)),
            ("retry of", found.retry_of and _text(found.retry_of)),
            ("forks", "\n".join(map(_text, found.forks))),
            ("retries", "\n".join(map(_text, found.retries))),
            ("results", "\n".join(f"{one.model} (step {one.step})" for one in found.results)),
            (
                "resume points",
                "\n".join(
                    f"step {point.step}, {size(point.bytes)}, {moment(point.created_at)}"
                    for point in points
                ),
            ),
        ]
    )


def self_check(
    ctx: typer.Context,
    job_id: JobId,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt (default: the newest).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the checks before the first step, with their results."""
    with connected(ctx) as client:
        found = client.fine_tuning.jobs.self_check(job_id, attempt=attempt)
    if as_json:
        show_json(found)
        return
    rows = [(one.check, one.state.replace("_", " "), one.detail) for one in found.checks]
    show_table(("CHECK", "STATE", "DETAIL"), rows)
    typer.echo(f"attempt {found.attempt}, {found.seconds:.1f} s")


def files(
    ctx: typer.Context,
    job_id: JobId,
    name: Annotated[
        Literal["recipe.json", "environment.json", "log.txt"] | None,
        typer.Argument(help="Print this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the files of a job with the API path of each file's content, or print one file."""
    with connected(ctx) as client:
        if name:
            typer.echo(visible(client.fine_tuning.jobs.file_content(job_id, name)), nl=False)
            return
        found = client.fine_tuning.jobs.files(job_id)
    if as_json:
        show_page_json(found, has_more=False)
        return
    show_table(
        ("KIND", "SIZE", "NAME"),
        (
            (file.kind, "" if file.bytes is None else size(file.bytes), visible(file.name))
            for file in found
        ),
    )


def add_to(app: typer.Typer) -> None:
    app.command("edit")(edit)
    app.command("lineage")(lineage)
    app.command("self-check")(self_check)
    app.command("files")(files)


def _text(job: RelatedJob) -> str:
    at = "" if job.step is None else f" from step {job.step}"
    name = job.name or job.suffix
    return f"{job.id} {job.state}{at}" + (f": {name}" if name else "")
