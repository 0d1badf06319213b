"""Commands of the server and the worker. Each command replaces this process by the server's or the
worker's program (exec).

This module imports no server or worker code; it only checks that the required libraries are
installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NoReturn

import typer

from . import audit_log, workers
from .session import fail


@dataclass(frozen=True, kw_only=True)
class _Command:
    help: str
    module: tuple[str, ...]
    extra: str
    libraries: tuple[str, ...]


def _server(name: str, help: str) -> _Command:
    return _Command(
        help=help,
        module=("tunesmith_server", name),
        extra="server",
        libraries=("fastapi", "sqlalchemy"),
    )


def _worker(help: str, *module: str) -> _Command:
    return _Command(help=help, module=module, extra="worker", libraries=("torch", "celery"))


COMMANDS = {
    "serve": _server("serve", "Start the whole service on this machine."),
    "api": _server("api", "Start the API alone."),
    "migrate": _server("migrate", "Create or upgrade the database."),
    "gc": _server("gc", "Delete stored content that is not used."),
    "keys": _server("keys", "Create, list and revoke API keys."),
    "audit": _server("audit", "Show, search and verify the audit log."),
    "worker": _worker(
        "Start a worker, which trains jobs; list, drain and undrain workers.",
        "tunesmith_worker",
        "worker",
    ),
    "demo": _worker("Train a small model from start to end.", "tunesmith_worker", "demo"),
    "run": _worker("Train one run directory, without a service.", "tunesmith_worker.trainer"),
}

_VERIFY = _Command(
    help="",
    module=("tunesmith_worker.engine.verify",),
    extra="worker",
    libraries=("torch", "transformers", "peft"),
)


def add_to(app: typer.Typer) -> None:
    for name, command in COMMANDS.items():
        app.command(
            name,
            help=command.help,
            rich_help_panel="On this machine",
            # The server or worker program handles --help.
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )(_exec(name))


def _exec(name: str) -> Callable[[typer.Context], None]:
    def exec_program(ctx: typer.Context) -> None:
        if name == "worker" and workers.is_remote(ctx.args):
            workers.run(ctx)
        elif name == "audit" and audit_log.is_remote(ctx.args):
            audit_log.run(ctx)
        else:
            _run(name, COMMANDS[name], ctx.args)

    return exec_program


def verify_adapter(arguments: list[str]) -> NoReturn:
    """Execute `tunesmith adapters verify` with the worker's libraries."""
    _run("adapters verify", _VERIFY, arguments)


def _run(name: str, command: _Command, arguments: list[str]) -> NoReturn:
    missing = [library for library in command.libraries if find_spec(library) is None]
    if missing:
        fail(
            f"`tunesmith {name}` needs {' and '.join(missing)}, which are not installed",
            hint=f"pip install 'tunesmith[{command.extra}]'",
            status=2,
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", *command.module, *arguments])
