"""Output of the CLI: the API's JSON for programs, tables of 80 columns for people."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Protocol, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from tunesmith_schema import FileUse, JobHealth, ModelUse

T = TypeVar("T", bound=BaseModel)
T_co = TypeVar("T_co", bound=BaseModel, covariant=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print the API's JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=100, help="Number of items, newest first.")]


class Listed(Protocol[T_co]):
    """A page of a list."""

    @property
    def data(self) -> Sequence[T_co]:
        """Items of the page."""

    @property
    def has_more(self) -> bool:
        """True if more items follow."""


def wire_json(model: BaseModel) -> str:
    """Return the JSON that the server sent, without defaults for missing keys."""
    return model.model_dump_json(exclude_unset=True)


def show_json(model: BaseModel) -> None:
    typer.echo(wire_json(model))


def show_json_value(value: Any) -> None:  # Any: JSON
    typer.echo(json.dumps(value))


def show_page_json(data: Sequence[BaseModel], has_more: bool) -> None:
    items = [json.loads(wire_json(item)) for item in data]
    typer.echo(json.dumps({"object": "list", "data": items, "has_more": has_more}))


def show_page(
    page: Listed[T], as_json: bool, columns: Sequence[str], row_of: Callable[[T], Sequence[str]]
) -> None:
    """Print a page as JSON, or as a table with a row for each item."""
    if as_json:
        show_page_json(page.data, page.has_more)
    else:
        show_table(columns, map(row_of, page.data))


def show_done(result: BaseModel, as_json: bool, text: str) -> None:
    """Print the result of a command as JSON if the caller asked for it, else print `text`."""
    if as_json:
        show_json(result)
    else:
        typer.echo(text)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table. The first column never wraps, so that ids can be copied."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def show_uses(uses: Iterable[FileUse | ModelUse]) -> None:
    """Show a table of the jobs and evaluations that use a file or a model."""
    show_table(
        ("ID", "NAME", "USED AS", "STATUS", "MODEL", "AGE"),
        (
            (
                use.id,
                use.name or "",
                use.role.replace("_", " "),
                use.status,
                use.model,
                age(use.created_at),
            )
            for use in uses
        ),
    )


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one field per line. Fields without a value are omitted."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        if value not in (None, "", {}, []):
            table.add_row(name, str(value))
    _console().print(table)


def visible(text: str) -> str:
    """Escape control characters, because text from a data set or a model must not control the
    terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def moment(seconds: int | None) -> str:
    """Format a Unix time as local date and time; return an empty text for None."""
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def age(seconds: int) -> str:
    """Return the time since a moment in its largest unit, such as `3h`."""
    elapsed = max(0, int(time.time() - seconds))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if elapsed >= length:
            return f"{elapsed // length}{unit}"
    return f"{elapsed}s"


def duration(seconds: float) -> str:
    """Return a duration such as `0:42` or `1:02:03`."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def health_word(health: JobHealth) -> str:
    """Return the health of a job in one word for people, such as `barely moved`."""
    return str(health.state).replace("_", " ")


def size(num_bytes: int) -> str:
    if num_bytes < 1024:
        return f"{num_bytes} B"
    value = num_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _console() -> Console:
    # Square brackets and `:x:` in names and messages are text, not markup.
    return Console(markup=False, highlight=False, emoji=False)
