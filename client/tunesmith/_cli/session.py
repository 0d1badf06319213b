"""What every API verb needs: a client from the global options, errors without tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

from tunesmith._http.errors import InvalidArgumentError, TunesmithError
from tunesmith._http.settings import ClientSettings, unknown_variables
from tunesmith._sdk.client import Client

_KEY_FILE = Path(".tunesmith") / "api-key"
"""Where `tunesmith serve` in this directory keeps the key it made."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The global options, as given."""

    base_url: str | None
    api_key: str | None


@contextmanager
def connected(ctx: typer.Context) -> Iterator[Client]:
    """Ends the process: 1 when the verb failed, 2 when it was called wrongly, 130 on Ctrl-C."""
    given = ctx.ensure_object(Connection)
    for unknown in unknown_variables():
        typer.echo(f"warning: {unknown}", err=True)
    key = given.api_key or ClientSettings.from_environment().api_key.get_secret_value()
    try:
        with Client(base_url=given.base_url, api_key=key or _key_from_file()) as client:
            yield client
    except InvalidArgumentError as error:
        fail(error.message, hint=error.hint, status=2)
    except TunesmithError as error:
        fail(error.message, hint=error.hint, request_id=error.request_id)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fail(
    message: str, *, hint: str | None = None, request_id: str | None = None, status: int = 1
) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    if hint:
        typer.echo(f"hint: {hint}", err=True)
    if request_id:
        typer.echo(f"request id: {request_id}", err=True)
    raise typer.Exit(status) from None


def _key_from_file() -> str:
    try:
        return _KEY_FILE.read_text()
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"no API key: TUNESMITH_API_KEY is not set, and there is no {_KEY_FILE} here",
            hint="set TUNESMITH_API_KEY (or give --api-key), or change to the directory in which "
            "`tunesmith serve` runs: it keeps a key there",
        ) from None
