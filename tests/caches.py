"""Share between tests what each test would compute again.

A program computes these things once: it has one database engine, few HTTP clients and one command
line. Tests have thousands of them.
"""

from __future__ import annotations

import functools
import gc
import ssl
from importlib.util import find_spec
from typing import Any

_STATEMENTS = 1500
"""Number of compiled SQL statements that are kept."""


def share() -> None:
    """Patch the libraries that are installed: a GPU machine does not have all of them."""
    # New objects between two garbage collections; Python's default is 700. The objects of our
    # libraries would be scanned again and again.
    gc.set_threshold(50_000, 20, 20)
    _share_certificates()
    if find_spec("sqlalchemy"):
        _share_statements()
    if find_spec("typer"):
        _share_commands()


def _share_certificates() -> None:
    """Read the certificates of the public authorities once, not for each HTTP client."""
    create = ssl.create_default_context
    kept = functools.cache(lambda cafile: create(cafile=cafile))

    def shared(*args: Any, **options: Any) -> ssl.SSLContext:  # Any: as ssl.create_default_context
        if not args and list(options) == ["cafile"]:
            return kept(options["cafile"])
        return create(*args, **options)

    ssl.create_default_context = shared


def _share_statements() -> None:
    """Compile each SQL statement once for all engines with the same kind of database."""
    from sqlalchemy import Engine, util
    from sqlalchemy.engine.default import DefaultDialect

    def kind(dialect: Any) -> tuple[object, ...]:  # Any: private attributes
        version = getattr(dialect, "server_version_info", None)
        return type(dialect), dialect._json_serializer, dialect._json_deserializer, version

    def is_same(dialect: DefaultDialect, other: object) -> bool:
        return isinstance(other, DefaultDialect) and kind(dialect) == kind(other)

    statements: util.LRUCache[Any, Any] = util.LRUCache(_STATEMENTS)
    make = Engine.__init__

    def with_statements(engine: Engine, *args: Any, **options: Any) -> None:  # Any: as Engine
        make(engine, *args, **options)
        engine._compiled_cache = statements

    # The dialect is a part of a statement's key.
    DefaultDialect.__eq__ = is_same  # type: ignore[method-assign, assignment]
    DefaultDialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    Engine.__init__ = with_statements  # type: ignore[method-assign, assignment]


def _share_commands() -> None:
    """Build the command line once, not for each command that a test runs."""
    import typer.main
    import typer.testing

    typer.testing._get_command = functools.cache(  # type: ignore[attr-defined]
        typer.main.get_command
    )
