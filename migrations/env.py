"""Entry point of Alembic: runs the migrations on the connection of tunesmith_server.migrate."""

from __future__ import annotations

from alembic import context

from tunesmith_server.core.database import Base, Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import JobRow

assert JobRow.metadata is Base.metadata  # the import registers all tables


def run() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        context.configure(
            connection=connection, target_metadata=Base.metadata, render_as_batch=True
        )
        with context.begin_transaction():
            context.run_migrations()
        return
    # For `alembic revision --autogenerate`, use the database from the environment.
    database = Database(Settings().database_url)
    with database.engine.begin() as opened:
        context.configure(connection=opened, target_metadata=Base.metadata, render_as_batch=True)
        context.run_migrations()


run()
