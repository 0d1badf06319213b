"""Installation id: a random id that an installation's database and its store
(TUNESMITH_STORAGE_URL) both contain.

Without the id, an API that was started with the wrong store or database would not notice the
mistake. The first start writes the id to the database and to the store.
"""

from __future__ import annotations

import logging
import secrets
import time

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from tunesmith_server.core.database import Database
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import InstallationRow
from tunesmith_server.services import blobs

log = logging.getLogger(__name__)

_SAMPLE = 20
"""Number of the most recently used objects of the table `blobs` that are looked up in a store
without an id. A store that has none of these objects is the wrong store."""
_REMEDY = (
    "check TUNESMITH_DATABASE_URL and TUNESMITH_STORAGE_URL (--data-dir); if this database and "
    "this store belong together, run `tunesmith gc --adopt`"
)


class WrongStore(ValueError):
    """The database and the store belong to different installations."""


def ensure(database: Database, storage: Storage) -> str:
    """Return the installation id. Raises WrongStore if the store has another id."""
    in_store, in_database = storage.installation_id(), _id_in(database)
    if in_store is None:
        in_database = in_database or _new_id_in(database)
        _claim_store(database, storage, in_database)
        in_store = storage.installation_id()
    if in_store is not None and in_database == in_store:
        return in_store
    described = f"belongs to installation {in_database}" if in_database else "has no id (new?)"
    raise WrongStore(
        f"the store {storage.url} belongs to installation {in_store}, and the database "
        f"{described}: {_REMEDY}"
    )


def _claim_store(database: Database, storage: Storage, installation: str) -> None:
    """Write the id to a store that has no id. The id is written at the first start, and at the
    first start after an upgrade from a version without ids."""
    with database.read() as session:
        names = blobs.newest(session, _SAMPLE)
    if names and all(storage.size(name) is None for name in names):
        raise WrongStore(
            f"the store {storage.url} has no installation id and none of the {len(names)} newest "
            f"files of the database (installation {installation}): {_REMEDY}"
        )
    storage.set_installation_id(installation)
    log.info("the store %s belongs to installation %s from now on", storage.url, installation)


def adopt(database: Database, storage: Storage) -> str:
    """Write the database's id to the store, and replace any other id. After the replacement, an API
    of the other installation refuses to start with this store."""
    installation = _id_in(database) or _new_id_in(database)
    storage.set_installation_id(installation, replace=True)
    return installation


def _id_in(database: Database) -> str | None:
    with database.read() as session:
        return session.scalar(select(InstallationRow.id))


def _new_id_in(database: Database) -> str:
    """Write a new id to the database, unless another process has just written one."""
    try:
        with database.write.begin() as session:
            row = session.get(InstallationRow, 1)
            if row is None:
                row = InstallationRow(
                    key=1, id=f"inst-{secrets.token_hex(12)}", created_at=time.time()
                )
                session.add(row)
        return row.id
    except IntegrityError:  # on PostgreSQL, another process was faster
        with database.read() as session:
            return session.scalars(select(InstallationRow.id)).one()
