"""Migrations: they produce exactly the models' schema and can be reverted with rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import create_engine, inspect, select, text

from tunesmith_server import migrate
from tunesmith_server.core.database import Base, Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import ApiKeyRow

from .actors import FakeWakeUps, serving
from .test_uploads import filled


def tables(url: str) -> set[str]:
    engine = create_engine(url)
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return found - {"alembic_version"}


def test_models_and_migrations_agree(database_url: str) -> None:
    database = Database(database_url)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    database.dispose()


def test_a_fresh_database_is_not_current_and_a_migrated_one_is(empty_url: str) -> None:
    assert not migrate.is_current(empty_url)
    migrate.upgrade(empty_url)
    assert migrate.is_current(empty_url)
    assert tables(empty_url) == set(Base.metadata.tables)


def test_migrating_twice_is_harmless(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    migrate.upgrade(empty_url)
    assert migrate.is_current(empty_url)


def test_several_hosts_may_migrate_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(migrate.upgrade, empty_url) for _ in range(4)]:
            done.result(timeout=60)
    assert migrate.is_current(empty_url)


def test_down_and_up_again_with_rows_inside(settings: Settings, wake_ups: FakeWakeUps) -> None:
    with serving(settings, wake_ups) as server:
        server.create_job(server.good_file(), headers={"idempotency-key": "k"})
        server.worker.succeed(server.worker.claim())
        filled(server)
    migrate.downgrade(settings.database_url, "base")
    assert tables(settings.database_url) == set()
    migrate.upgrade(settings.database_url)
    with serving(settings, wake_ups) as server:
        assert server.user.json("/v1/files")["data"] == []


def test_a_failed_migration_changes_nothing(empty_url: str) -> None:
    with pytest.raises(Exception, match="none"):
        migrate.upgrade(empty_url, "none")
    assert tables(empty_url) == set()


def test_rows_survive_an_upgrade_that_has_nothing_to_do(database_url: str) -> None:
    database = Database(database_url)
    row = ApiKeyRow(id="key-1", name="n", sha256="0" * 64, prefix="ts-", created_at=1.0)
    with database.write.begin() as session:
        session.add(row)
    migrate.upgrade(database_url)
    with database.read() as session:
        assert session.scalars(select(ApiKeyRow.id)).all() == ["key-1"]
    database.dispose()


OLD_FILE = """
    INSERT INTO files (id, created_at, filename, purpose, bytes, sha256, status, woken_at)
    VALUES ('file-old', 1.0, 'rows.jsonl', 'fine-tune', 9, '0', 'processed', 1.0)
"""


def test_rows_survive_every_step_up_and_down(empty_url: str) -> None:
    """A row of the first schema survives each upgrade and each downgrade."""
    first, *later = [step.revision for step in _steps()]
    migrate.upgrade(empty_url, first)
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(text(OLD_FILE))
    assert len(later) >= 2
    steps: list[tuple[Callable[[str, str], None], str]] = [
        (migrate.upgrade, revision) for revision in later
    ]
    steps += [(migrate.downgrade, revision) for revision in [first, *later][-2::-1]]
    for move, revision in steps:
        move(empty_url, revision)
        with engine.connect() as connection:
            kept = connection.execute(text("SELECT id, bytes, status FROM files")).all()
        assert [tuple(row) for row in kept] == [("file-old", 9, "processed")], (move, revision)
    migrate.upgrade(empty_url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT readings FROM files")).scalar() == 0
    engine.dispose()


def _steps() -> list[Script]:
    """Oldest first."""
    return list(ScriptDirectory.from_config(migrate._config()).walk_revisions())[::-1]
