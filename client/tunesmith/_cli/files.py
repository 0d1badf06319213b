"""`tunesmith files ...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunesmith_schema import FileObject

from .output import (
    AsJson,
    Limit,
    age,
    moment,
    show_fields,
    show_json,
    show_page_json,
    show_table,
    size,
)
from .session import connected, fail

app = typer.Typer(help="Data sets on the server.", no_args_is_help=True)

FileId = Annotated[str, typer.Argument(metavar="ID", help="file-...")]


@app.command("upload")
def upload(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="JSONL, JSON, CSV or Parquet.")],
    purpose: Annotated[str, typer.Option(help="What it is for.")] = "fine-tune",
    wait: Annotated[bool, typer.Option("--wait", help="Until it has been validated.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a file."""
    with connected(ctx) as client:
        file = client.files.create(file=path, purpose=purpose, progress=True)
        if wait:
            file = client.files.wait_for_processing(file.id)
        _show(file, as_json)
        if file.status == "error":
            fail(f"{path} cannot be used: {file.status_details or 'no reason given'}")


@app.command("list")
def list_files(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """The newest files."""
    with connected(ctx) as client:
        page = client.files.list(limit=limit)
        if as_json:
            show_page_json(page.data, page.has_more)
            return
        show_table(
            ("ID", "NAME", "SIZE", "ROWS", "STATUS", "AGE"),
            (
                (
                    file.id,
                    file.filename,
                    size(file.bytes),
                    str(file.validation.rows) if file.validation else "",
                    file.status,
                    age(file.created_at),
                )
                for file in page.data
            ),
        )


@app.command("show")
def show(ctx: typer.Context, file_id: FileId, as_json: AsJson = False) -> None:
    """One file, and what validation found in it."""
    with connected(ctx) as client:
        _show(client.files.retrieve(file_id), as_json)


@app.command("delete")
def delete(ctx: typer.Context, file_id: FileId, as_json: AsJson = False) -> None:
    """Delete a file."""
    with connected(ctx) as client:
        gone = client.files.delete(file_id)
        if as_json:
            show_json(gone)
        else:
            typer.echo(f"deleted {gone.id}")


@app.command("download")
def download(
    ctx: typer.Context,
    file_id: FileId,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="By default its own name, here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a file's content."""
    with connected(ctx) as client:
        file = client.files.retrieve(file_id)
        # Only the last part of the name: it was chosen by whoever uploaded the file.
        path = output or Path(Path(file.filename).name or file.id)
        if output is None and path.exists():
            fail(f"{path} exists already", hint="name another file with -o")
        client.files.download(file_id, path)
        if as_json:
            show_json(file)
        else:
            typer.echo(f"{path}  {size(file.bytes)}")


def _show(file: FileObject, as_json: bool) -> None:
    if as_json:
        show_json(file)
        return
    found = file.validation
    problems = [f"row {one.row}: {one.message}" for one in found.problems[:5]] if found else []
    not_for = (
        [f"{method}: {bad.summary()}" for method, bad in found.refused.items()] if found else []
    )
    show_fields(
        [
            ("id", file.id),
            ("name", file.filename),
            ("size", size(file.bytes)),
            ("purpose", file.purpose),
            ("created", moment(file.created_at)),
            ("status", file.status),
            ("reason", file.status_details),
            ("format", found and (found.format or found.prompt_format)),
            ("usable for", found and ", ".join(found.usable_for)),
            ("not for", "\n".join(not_for) if found and found.ok else None),
            ("rows", found and found.rows),
            ("bad rows", found and (found.num_problems or None)),
            ("problems", "\n".join(problems)),
            ("sha256", file.sha256),
        ]
    )
