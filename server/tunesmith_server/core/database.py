"""Engine and sessions. The same code serves SQLite and PostgreSQL.

Writers on SQLite begin with BEGIN IMMEDIATE, so that two of them queue up instead of failing at
commit; readers begin deferred and never wait for a writer (WAL). Those of one process queue up at
a lock: SQLite itself waits by asking again after ever longer pauses, up to 100 ms.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from typing import Any, cast

from pydantic_core import to_json
from sqlalchemy import Connection, Double, create_engine, event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

READ_ONLY = "read_only"
"""Key in the `info` of a session that must not write."""
_BUSY_SECONDS = 15


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
        on_sqlite = url.startswith("sqlite")
        self.engine = create_engine(
            url,
            pool_pre_ping=not on_sqlite,
            json_serializer=_to_json,
            connect_args={"factory": _SQLiteConnection} if on_sqlite else {},
        )
        if on_sqlite:
            _prepare_sqlite(self.engine)
        self.write: sessionmaker[Session] = sessionmaker(self.engine, expire_on_commit=False)
        self.read: sessionmaker[Session] = sessionmaker(
            self.engine.execution_options(read_only=True),
            expire_on_commit=False,
            info={READ_ONLY: True},
        )

    def dispose(self) -> None:
        self.engine.dispose()


def _to_json(value: Any) -> str:  # Any: what JSON columns hold
    """JSON with null for NaN, which PostgreSQL would refuse."""
    return to_json(value, inf_nan_mode="null").decode()


class _SQLiteConnection(sqlite3.Connection):
    """Gives the lock of the writers back when its transaction has ended, however it did."""

    writers: threading.Lock
    _writes = False

    def wait_for_turn(self) -> None:
        # After the timeout SQLite itself decides, and says what there is to say.
        self._writes = self.writers.acquire(timeout=_BUSY_SECONDS)

    def commit(self) -> None:
        try:
            super().commit()
        finally:
            self._end_turn()

    def rollback(self) -> None:
        try:
            super().rollback()
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._writes:
            self._writes = False
            self.writers.release()


def _prepare_sqlite(engine: Any) -> None:  # Any: event targets are untyped
    writers = threading.Lock()

    @event.listens_for(engine, "connect")
    def _on_connect(connection: _SQLiteConnection, record: object) -> None:
        connection.writers = writers
        connection.isolation_level = None  # we say BEGIN ourselves
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"busy_timeout={_BUSY_SECONDS * 1000}",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        if connection.get_execution_options().get("read_only", False):
            connection.exec_driver_sql("BEGIN")
            return
        raw = cast(_SQLiteConnection, connection.connection.dbapi_connection)
        raw.wait_for_turn()  # given back by the pool's rollback, should the next line fail
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def new_id(prefix: str) -> str:
    """A fresh id such as `ftjob-4f1c...`: 96 random bits."""
    return f"{prefix}-{secrets.token_hex(12)}"
