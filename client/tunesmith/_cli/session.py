"""Creation of a client from the global options, and error output without tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

from tunesmith._http.errors import InvalidArgumentError, TunesmithError
from tunesmith._http.hints import in_commands, in_python
from tunesmith._http.settings import ClientSettings, unknown_variables
from tunesmith._sdk.client import Client

_KEY_FILE = Path(".tunesmith") / "api-key"
"""File with the API key of the `tunesmith serve` that was started in this directory."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Values of the global options."""

    base_url: str | None
    api_key: str | None
    project: str | None = None


@contextmanager
def connected(ctx: typer.Context) -> Iterator[Client]:
    """Yield a client; if an error occurs, print it and exit. Exit codes: 1 failure, 2 wrong usage,
    130 Ctrl-C."""
    options = ctx.ensure_object(Connection)
    for warning in unknown_variables():
        typer.echo(f"warning: {warning}", err=True)
    key = options.api_key or ClientSettings.from_environment().api_key.get_secret_value()
    try:
        with Client(
            base_url=options.base_url, api_key=key or _key_from_file(), project=options.project
        ) as client:
            yield client
    except InvalidArgumentError as error:
        fail(error.message, hint=error.hint, status=2)
    except TunesmithError as error:
        fail(error.message, hint=error.hint, request_id=error.request_id)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(without_errno(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def without_errno(error: OSError) -> str:
    """Return the error's text and file name, without `[Errno 2]`."""
    if error.filename is None or error.strerror is None:
        return str(error)
    missing = isinstance(error, FileNotFoundError)
    return f"{'file not found' if missing else error.strerror.lower()}: {error.filename}"


def fail(
    message: str, *, hint: str | None = None, request_id: str | None = None, status: int = 1
) -> NoReturn:
    """Print an error with a hint that names CLI commands, and exit."""
    typer.echo(f"error: {message}", err=True)
    if hint:
        typer.echo(f"hint: {in_commands(in_python(hint))}", err=True)
    if request_id:
        typer.echo(f"request id: {request_id}", err=True)
    raise typer.Exit(status) from None


def _key_from_file() -> str:
    try:
        return _KEY_FILE.read_text()
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"no API key: TUNESMITH_API_KEY is not set, and this directory has no {_KEY_FILE}",
            hint="set TUNESMITH_API_KEY, pass --api-key, or change to the directory in which "
            "`tunesmith serve` runs and stores its key",
        ) from None
