"""Errors of an operation: an outage, after which the same operation may succeed, or bad data, which
no repetition helps."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

from tunesmith_server.core.errors import ServiceError
from tunesmith_server.core.storage import StorageUnavailable


def is_outage(error: BaseException) -> bool:
    """Return True if the database, the storage, the disk or the memory failed, and False if the
    data of the operation are at fault."""
    if isinstance(error, ServiceError):
        return error.retryable
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return True
        may_be = isinstance(error, OperationalError | InterfaceError | InternalError)
        return may_be and not _blames_data(error.orig)
    return isinstance(error, StorageUnavailable | OSError | MemoryError)


def _blames_data(error: BaseException | None) -> bool:
    """Return True for SQLite's code of, for example, "malformed JSON", and for PostgreSQL's class
    54: a value beyond a limit of the database."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return True
    return (getattr(error, "sqlstate", None) or "").startswith("54")
