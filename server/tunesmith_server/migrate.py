"""Database migrations: upgrade the schema, or check that it is current."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import func, select

from tunesmith_server.core.database import Database

_LOCK = 0x74756E65
"""Id of a PostgreSQL advisory lock.

If several hosts start at the same time, one host migrates and the others wait.
"""


def _config() -> Config:
    package = Path(__file__).parent
    # A wheel carries the migrations inside the package; a checkout has them at its root.
    for folder in (package / "migrations", package.parents[1] / "migrations"):
        if folder.is_dir():
            config = Config()
            config.set_main_option("script_location", str(folder))
            return config
    raise FileNotFoundError(f"no migrations folder in {package}: reinstall tunesmith")


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up to `revision`, in one transaction."""
    _run(url, revision, up=True)


def downgrade(url: str, revision: str) -> None:
    """Migrate down to `revision` ("base" removes everything)."""
    _run(url, revision, up=False)


def _run(url: str, revision: str, *, up: bool) -> None:
    database = Database(url)
    config = _config()
    try:
        with database.engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            config.attributes["connection"] = connection
            (command.upgrade if up else command.downgrade)(config, revision)
    finally:
        database.dispose()


def is_current(url: str) -> bool:
    """Return True if the database has the newest schema."""
    database = Database(url)
    try:
        with database.engine.connect() as connection:
            heads = MigrationContext.configure(connection).get_current_heads()
    finally:
        database.dispose()
    return set(heads) == set(ScriptDirectory.from_config(_config()).get_heads())
