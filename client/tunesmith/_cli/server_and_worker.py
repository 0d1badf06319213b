"""Verbs of the server and the worker: this process becomes theirs, arguments untouched.

Imports neither; it only looks whether the libraries they need are installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import typer

from .session import fail


@dataclass(frozen=True, kw_only=True)
class _Verb:
    help: str
    command: tuple[str, ...]
    """What follows `python -m`."""
    extra: str
    libraries: tuple[str, ...]


def _server(verb: str, help: str) -> _Verb:
    return _Verb(
        help=help,
        command=("tunesmith_server", verb),
        extra="server",
        libraries=("fastapi", "sqlalchemy"),
    )


def _worker(help: str, *command: str) -> _Verb:
    return _Verb(help=help, command=command, extra="worker", libraries=("torch", "celery"))


VERBS = {
    "serve": _server("serve", "Start everything on this machine."),
    "api": _server("api", "Start the API only."),
    "migrate": _server("migrate", "Bring the database up to date."),
    "keys": _server("keys", "Create, list and revoke API keys."),
    "worker": _worker("Start a worker.", "tunesmith_worker", "worker"),
    "demo": _worker("Fine-tune a small model from start to end.", "tunesmith_worker", "demo"),
    "run": _worker("Train one run directory by hand.", "tunesmith_worker.run"),
}


def add_to(app: typer.Typer) -> None:
    for name, verb in VERBS.items():
        app.command(
            name,
            help=verb.help,
            rich_help_panel="On this machine",
            # --help belongs to the other program as well.
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )(_become(name))


def _become(name: str) -> Callable[[typer.Context], None]:
    def become(ctx: typer.Context) -> None:
        verb = VERBS[name]
        missing = [library for library in verb.libraries if find_spec(library) is None]
        if missing:
            fail(
                f"`tunesmith {name}` needs {' and '.join(missing)}, not installed here",
                hint=f"pip install 'tunesmith[{verb.extra}]'",
                status=2,
            )
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", *verb.command, *ctx.args])

    return become
