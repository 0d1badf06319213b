"""Caches that all tests of a process share: compiled SQL, CLI commands and TLS contexts.

A program creates one database engine, few HTTP clients and one command line. The tests of a process
create thousands.
"""

from __future__ import annotations

import functools
import gc
import os
import ssl
from contextlib import suppress
from typing import Any

_STATEMENTS = 1500
"""Number of compiled SQL statements that are kept."""
_THRESHOLDS = (50_000, 10, 10)
"""New objects before a garbage collection, and collections before one of the next generation.
Python's 700 new objects took 5.6 % of the CPU time of the tests."""


def share() -> None:
    """Patch the installed libraries. A GPU machine does not have all of them."""
    gc.set_threshold(*_THRESHOLDS)
    for patch in (_share_certificates, _share_statements, _share_commands):
        with suppress(ImportError):
            patch()


def _share_certificates() -> None:
    """Read the certificates of the public authorities once, not for each HTTP client."""
    import certifi

    public = {certifi.where(), os.environ.get("SSL_CERT_FILE")}
    create = ssl.create_default_context
    kept = functools.cache(lambda cafile: create(cafile=cafile))

    def shared(*args: Any, **options: Any) -> ssl.SSLContext:  # Any: as ssl.create_default_context
        if not args and list(options) == ["cafile"] and options["cafile"] in public - {None}:
            return kept(options["cafile"])
        return create(*args, **options)

    ssl.create_default_context = shared


def _share_statements() -> None:
    """Compile each SQL statement once for all engines with equal dialects."""
    from sqlalchemy import Engine, util
    from sqlalchemy.engine.default import DefaultDialect

    def settings(dialect: Any) -> tuple[object, ...]:  # Any: private attributes
        return (
            type(dialect),
            dialect.server_version_info,
            dialect.paramstyle,
            dialect.label_length,
            dialect.use_insertmanyvalues,
            dialect.insertmanyvalues_page_size,
            dialect._json_serializer,
            dialect._json_deserializer,
        )

    def equal(dialect: DefaultDialect, other: object) -> bool:
        return isinstance(other, DefaultDialect) and settings(dialect) == settings(other)

    def type_hash(dialect: object) -> int:
        return hash(type(dialect))

    # The dialect is a part of a statement's key.
    DefaultDialect.__eq__ = equal  # type: ignore[method-assign, assignment]  # mypy refuses patches
    DefaultDialect.__hash__ = type_hash  # type: ignore[method-assign, assignment]  # mypy refuses patches

    statements: util.LRUCache[Any, Any] = util.LRUCache(_STATEMENTS)

    def shared(engine: Engine) -> object:
        return None if vars(engine)["_compiled_cache"] is None else statements

    def keep(engine: Engine, own: object) -> None:
        vars(engine)["_compiled_cache"] = own

    Engine._compiled_cache = property(shared, keep)  # type: ignore[assignment]  # mypy refuses patches


def _share_commands() -> None:
    """Build the command line once, not for each command that a test runs."""
    import typer.main
    import typer.testing

    typer.testing._get_command = functools.cache(  # type: ignore[attr-defined]  # private name
        typer.main.get_command
    )
