"""Two kinds of errors: after an outage, the same operation may succeed later; with bad data, the
operation always fails."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from tunesmith_server.core.database import is_database_outage
from tunesmith_server.core.errors import ServiceError
from tunesmith_server.core.storage import StorageUnavailable


def is_outage(error: BaseException) -> bool:
    """Return True if the database, the storage, the disk or the memory failed, and False if the
    data of the operation are at fault."""
    if isinstance(error, ServiceError):
        return error.retryable
    if isinstance(error, DBAPIError):
        return is_database_outage(error)
    return isinstance(error, StorageUnavailable | OSError | MemoryError)
