"""Database engine and sessions, for SQLite and PostgreSQL.

On SQLite, a write transaction starts with BEGIN IMMEDIATE, so concurrent writers wait instead of
failing at commit. A read transaction starts deferred and never waits for a writer (WAL). Writers in
one process wait for a Python lock, because SQLite would poll with pauses of up to 100 ms.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import sqlite3
import threading
from typing import Any, cast

import psycopg
from pydantic_core import to_json
from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Double,
    String,
    create_engine,
    event,
    literal_column,
)
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from .planes import DATABASE_CONNECTIONS

READ_ONLY = "read_only"
"""Key in `session.info` that marks a read-only session."""
_BUSY_SECONDS = 15
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""Escape sequence of NUL in JSON. If an odd number of backslashes comes before the sequence, the
backslash of the sequence is escaped. A sequence with an escaped backslash is plain text, and the
pattern does not match it.
"""
_KEPT_CONNECTIONS = 16


class Base(DeclarativeBase):
    """Declarative base class of all tables."""


class epoch_now(FunctionElement[float]):
    """Database clock in Unix seconds. Leases use only the database clock."""

    type = Double()
    inherit_cache = True


@compiles(epoch_now, "sqlite")
def _epoch_sqlite(element: epoch_now, compiler: SQLCompiler, **kw: Any) -> str:
    # SQLite before 3.42 has no unixepoch('subsec').
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(epoch_now, "postgresql")
def _epoch_postgresql(element: epoch_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


def constant(value: str | float) -> ColumnElement[Any]:  # Any: of the value's type
    """Return a constant as part of the SQL text, not as a parameter.

    PostgreSQL reuses the plan of a prepared statement only if one plan suits all values of the
    parameters. With fewer parameters, a statement is more likely to have one plan for all values.
    """
    if isinstance(value, str):
        assert value.isidentifier(), value
        return literal_column(f"'{value}'", String())
    return literal_column(repr(value))


class readable_object(FunctionElement[Any]):  # Any: JSON
    """SQL expression of a JSON column's value, or of {} if the value is not an object. SQL's JSON
    functions raise an error for values that are not objects: without {}, one damaged row would make
    the whole query fail."""

    type = JSON()
    inherit_cache = True


@compiles(readable_object, "sqlite")
def _object_sqlite(element: readable_object, compiler: SQLCompiler, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    valid = f"json_valid({column}) AND json_type({column}) = 'object'"
    return f"CASE WHEN {valid} THEN {column} ELSE '{{}}' END"


@compiles(readable_object, "postgresql")
def _object_postgresql(element: readable_object, compiler: SQLCompiler, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    return f"CASE WHEN json_typeof({column}) = 'object' THEN {column} ELSE '{{}}'::json END"


class UnreadableJson:
    """Value of a JSON column whose text is not JSON; SQLite does not check the text. Readers of the
    column refuse this value, so that only this row is unreadable."""


class Database:
    """Engine of one database; `write()` and `read()` open sessions."""

    def __init__(self, url: str) -> None:
        on_sqlite = url.startswith("sqlite")
        self.engine = create_engine(
            url,
            pool_pre_ping=not on_sqlite,
            pool_size=_KEPT_CONNECTIONS,
            max_overflow=DATABASE_CONNECTIONS - _KEPT_CONNECTIONS,
            json_serializer=_to_json,
            json_deserializer=_from_json,
            connect_args={"factory": _SQLiteConnection} if on_sqlite else {},
        )
        if on_sqlite:
            _prepare_sqlite(self.engine)
        else:
            _prepare_postgresql(self.engine)
        self.write: sessionmaker[Session] = sessionmaker(self.engine, expire_on_commit=False)
        self.read: sessionmaker[Session] = sessionmaker(
            self.engine.execution_options(read_only=True),
            expire_on_commit=False,
            info={READ_ONLY: True},
        )

    def dispose(self) -> None:
        """Close all connections.

        A connection that a thread still uses is closed when the thread returns it.
        """
        if not event.contains(self.engine, "checkin", _close_returned):
            event.listen(self.engine, "checkin", _close_returned)
        self.engine.dispose()


def _close_returned(connection: object, record: ConnectionPoolEntry) -> None:
    record.invalidate()


def _to_json(value: Any) -> str:  # Any: JSON column values
    """Serialize to JSON; NaN becomes null, because PostgreSQL refuses NaN.

    NUL becomes U+FFFD, because PostgreSQL stores NUL but fails in each query that reads a key of a
    JSON value with NUL.
    """
    text = to_json(value, inf_nan_mode="null").decode()
    return _NUL.sub(r"\1\\ufffd", text) if "\\u0000" in text else text


def _from_json(text: str | bytes) -> Any:  # Any: JSON column values
    try:
        return json.loads(text)
    except ValueError:
        return UnreadableJson()


class _SQLiteConnection(sqlite3.Connection):
    """Connection that holds the process's writer lock during a write transaction."""

    writer_lock: threading.Lock
    _holds_lock = False

    def acquire_writer_lock(self) -> None:
        # After a timeout, SQLite tries its own lock and raises its own error.
        self._holds_lock = self.writer_lock.acquire(timeout=_BUSY_SECONDS)

    def commit(self) -> None:
        try:
            super().commit()
        finally:
            self._release_writer_lock()

    def rollback(self) -> None:
        try:
            super().rollback()
        finally:
            self._release_writer_lock()

    def _release_writer_lock(self) -> None:
        if self._holds_lock:
            self._holds_lock = False
            self.writer_lock.release()


def _prepare_sqlite(engine: Any) -> None:  # Any: event targets are untyped
    writer_lock = threading.Lock()

    @event.listens_for(engine, "connect")
    def _on_connect(connection: _SQLiteConnection, record: object) -> None:
        connection.writer_lock = writer_lock
        connection.isolation_level = None  # _on_begin executes BEGIN
        connection.create_function("ln", 1, math.log, deterministic=True)  # some builds lack ln
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={_BUSY_SECONDS * 1000}",  # first: the next one waits for other hosts
            "journal_mode=WAL",
            "synchronous=FULL",  # a commit survives a power cut; costs 0.4 ms, 0.15 ms of it CPU
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
        raw.acquire_writer_lock()  # if BEGIN fails, the pool's rollback releases the lock
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class _PostgreSQLConnection(psycopg.Connection[Any]):  # Any: rows
    """Connection that ends a read-only transaction with COMMIT.

    At a ROLLBACK, the driver psycopg drops all its prepared statements, and PostgreSQL must plan
    the queries again. For the queries of a claim, planning takes longer than execution.
    """

    def rollback(self) -> None:
        is_good = self.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        if self.read_only and is_good:
            self.commit()
        else:
            super().rollback()


def _prepare_postgresql(engine: Any) -> None:  # Any: event targets are untyped
    @event.listens_for(engine, "do_connect")
    def _connect(
        dialect: object, record: object, args: Any, options: Any
    ) -> psycopg.Connection[Any]:  # Any: arguments and rows
        return _PostgreSQLConnection.connect(*args, **options)

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        raw = cast(_PostgreSQLConnection, connection.connection.dbapi_connection)
        raw.read_only = connection.get_execution_options().get(READ_ONLY) or None


def is_database_outage(error: DBAPIError) -> bool:
    """Return True if the database failed or did not answer, and False if the data of the statement
    are at fault."""
    if error.connection_invalidated:
        return True
    may_be = isinstance(error, OperationalError | InterfaceError | InternalError)
    return may_be and not _blames_data(error.orig)


def _blames_data(error: BaseException | None) -> bool:
    """Return True if the statement's data caused the error. SQLite reports malformed JSON with the
    code SQLITE_ERROR. PostgreSQL reports values beyond its limits with error class 54."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return True
    return (getattr(error, "sqlstate", None) or "").startswith("54")


def new_id(prefix: str) -> str:
    """Return a new id such as `ftjob-4f1c...`: 96 random bits."""
    return f"{prefix}-{secrets.token_hex(12)}"
