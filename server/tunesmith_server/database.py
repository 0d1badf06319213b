"""Engine and sessions. The same code serves SQLite and PostgreSQL.

Writers on SQLite begin with BEGIN IMMEDIATE, so that two of them queue up instead of failing at
commit; readers begin deferred and never wait for a writer (WAL).
"""

from __future__ import annotations

import secrets
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Connection, Double, create_engine, event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class Base(DeclarativeBase):
    """Base of every table."""


class epoch_now(FunctionElement[float]):
    """The database's clock, unix seconds. Leases are judged by this clock alone."""

    type = Double()
    inherit_cache = True


@compiles(epoch_now, "sqlite")
def _epoch_sqlite(element: epoch_now, compiler: SQLCompiler, **kw: Any) -> str:
    # SQLite before 3.42 has no unixepoch('subsec').
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(epoch_now, "postgresql")
def _epoch_postgresql(element: epoch_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class Database:
    """One engine; `write()` and `read()` open sessions."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(
            url, pool_pre_ping=not url.startswith("sqlite"), json_serializer=_to_json
        )
        if self.engine.dialect.name == "sqlite":
            _prepare_sqlite(self.engine)
        self.write: sessionmaker[Session] = sessionmaker(self.engine, expire_on_commit=False)
        self.read: sessionmaker[Session] = sessionmaker(
            self.engine.execution_options(read_only=True), expire_on_commit=False
        )

    def dispose(self) -> None:
        self.engine.dispose()


def _to_json(value: Any) -> str:  # Any: what JSON columns hold
    """JSON with null for NaN, which PostgreSQL would refuse."""
    return to_json(value, inf_nan_mode="null").decode()


def _prepare_sqlite(engine: Any) -> None:  # Any: event targets are untyped
    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:  # Any: the DBAPI's own objects
        connection.isolation_level = None  # we say BEGIN ourselves
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "busy_timeout=15000",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def new_id(prefix: str) -> str:
    """A fresh id such as `ftjob-4f1c...`: 96 random bits."""
    return f"{prefix}-{secrets.token_hex(12)}"
