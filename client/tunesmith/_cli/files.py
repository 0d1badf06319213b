"""`tunesmith files`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tunesmith_schema import DataRow, FileObject, FileValidation

from .output import (
    AsJson,
    Limit,
    age,
    moment,
    show_done,
    show_fields,
    show_json,
    show_page,
    show_page_json,
    show_table,
    show_uses,
    size,
    visible,
)
from .session import connected, fail

app = typer.Typer(help="Data sets on the server.", no_args_is_help=True)

_MAX_ROW = 300
"""Maximum number of characters that are shown of a row."""

FileId = Annotated[str, typer.Argument(metavar="ID", help="file-...")]


@app.command("upload")
def upload(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="File in JSONL, JSON, CSV or Parquet format.")],
    purpose: Annotated[
        str, typer.Option(help="Purpose of the file; use `fine-tune` for a data set.")
    ] = "fine-tune",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the file is validated.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a file, unless the server already has the same file."""
    with connected(ctx) as client:
        file = client.files.create(file=path, purpose=purpose, progress=True)
        if file.reused:
            typer.echo(f"already uploaded as {file.id}; reused", err=True)
        if wait:
            file = client.files.wait_for_processing(file.id)
        _show(file, as_json)
        if file.status == "error":
            fail(f"{path} is not usable: {file.status_details or 'the server gave no reason'}")


@app.command("list")
def list_files(
    ctx: typer.Context,
    text: Annotated[
        str | None, typer.Option(help="Only files with this text in the name or the id.")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List files, newest first, with the number of jobs and evaluations that use each file."""
    with connected(ctx) as client:
        show_page(
            client.files.list(limit=limit, q=text, include="num_uses"),
            as_json,
            ("ID", "NAME", "SIZE", "ROWS", "USES", "STATUS", "AGE"),
            lambda file: (
                file.id,
                file.filename,
                size(file.bytes),
                str(file.validation.rows) if file.validation else "",
                "" if file.num_uses is None else str(file.num_uses),
                file.status,
                age(file.created_at),
            ),
        )


@app.command("show")
def show(ctx: typer.Context, file_id: FileId, as_json: AsJson = False) -> None:
    """Show a file and the result of its validation."""
    with connected(ctx) as client:
        _show(client.files.retrieve(file_id), as_json)


@app.command("rows")
def rows(
    ctx: typer.Context,
    file_id: FileId,
    offset: Annotated[int, typer.Option(min=0, help="Number of lines to skip.")] = 0,
    text: Annotated[str | None, typer.Option(help="Only rows with this text.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of rows.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show rows of a JSONL file with their line numbers. Long rows are shortened; --json prints
    complete rows."""
    with connected(ctx) as client:
        page = client.files.rows(file_id, offset=offset, q=text, limit=limit)
        while not page.data and (following := page.next_page()) is not None:
            page = following  # the server reads a bounded number of bytes for each page
    if as_json:
        show_page_json(page.data, page.has_more)
    elif page.data:
        show_table(("LINE", "ROW"), ((str(row.line), _row_text(row)) for row in page.data))
    else:
        typer.echo(f"{file_id} has no such rows" if text else f"{file_id} has no more rows")


def _row_text(row: DataRow) -> str:
    whole = f"{row.problem}: {row.text}" if row.problem else _json(row.data)
    return visible(whole if len(whole) <= _MAX_ROW else f"{whole[:_MAX_ROW]}...")


def _json(value: Any) -> str:  # Any: JSON
    return json.dumps(value, ensure_ascii=False)


@app.command("uses")
def uses(ctx: typer.Context, file_id: FileId, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the jobs and evaluations that use a file, newest first."""
    with connected(ctx) as client:
        page = client.files.uses(file_id, limit=limit)
        if as_json:
            show_page_json(page.data, page.has_more)
            return
        show_uses(page.data)


@app.command("stats")
def stats(ctx: typer.Context, file_id: FileId, as_json: AsJson = False) -> None:
    """Show lengths and duplicates of the rows of a data set."""
    with connected(ctx) as client:
        found = client.files.stats(file_id)
    if as_json:
        show_json(found)
        return
    lengths = found.lengths
    fields: list[tuple[str, object]] = [("rows", found.rows)]
    if lengths:
        fields += [
            ("characters", lengths.total),
            ("shortest row", lengths.min),
            ("median", lengths.median),
            ("95 % up to", lengths.p95),
            ("longest row", lengths.max),
        ]
    repeated = [f"row {item.row}: {item.count} times" for item in found.repeated[:5]]
    show_fields([*fields, ("duplicates", found.duplicates), ("repeated", "\n".join(repeated))])


@app.command("overlap")
def overlap(
    ctx: typer.Context,
    file_id: FileId,
    other_id: Annotated[str, typer.Argument(metavar="OTHER", help="file-...")],
    as_json: AsJson = False,
) -> None:
    """Show the rows of a data set that are also in another data set."""
    with connected(ctx) as client:
        found = client.files.overlap(file_id, other_id)
    if as_json:
        show_json(found)
        return
    typer.echo(f"{found.rows} rows ({100 * found.share:.1f} %) of {file_id} are in {other_id} too")
    if found.pairs:
        show_table(("ROW", "IN OTHER"), ((str(p.row), str(p.other)) for p in found.pairs))


@app.command("delete")
def delete(ctx: typer.Context, file_id: FileId, as_json: AsJson = False) -> None:
    """Delete a file."""
    with connected(ctx) as client:
        deleted = client.files.delete(file_id)
        show_done(deleted, as_json, f"deleted {deleted.id}")


@app.command("download")
def download(
    ctx: typer.Context,
    file_id: FileId,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Path to write (default: the name of the file).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a file."""
    with connected(ctx) as client:
        file = client.files.retrieve(file_id)
        # The uploader chose the file's name, which may contain folders. Remove the folders.
        path = output or Path(Path(file.filename).name or file.id)
        if output is None and path.exists():
            fail(f"{path} exists already", hint="choose another name with -o")
        client.files.download(file_id, path)
        if as_json:
            show_json(file)
        else:
            typer.echo(f"{path}  {size(file.bytes)}")


def _show(file: FileObject, as_json: bool) -> None:
    if as_json:
        show_json(file)
        return
    validation = file.validation or FileValidation(ok=False)
    problems = [f"row {problem.row}: {problem.message}" for problem in validation.problems[:5]]
    refused = [f"{method}: {rows.summary()}" for method, rows in validation.refused.items()]
    show_fields(
        [
            ("id", file.id),
            ("name", file.filename),
            ("size", size(file.bytes)),
            ("purpose", file.purpose),
            ("created", moment(file.created_at)),
            ("status", file.status),
            ("reason", file.status_details),
            ("format", validation.format or validation.prompt_format),
            ("usable for", ", ".join(validation.usable_for)),
            ("not for", "\n".join(refused) if validation.ok else None),
            ("rows", validation.rows if file.validation else None),
            ("bad rows", validation.num_problems or None),
            ("problems", "\n".join(problems)),
            ("sha256", file.sha256),
        ]
    )
