"""Migrations: they produce exactly the models' schema and can be reverted with rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Integer,
    MetaData,
    create_engine,
    inspect,
    select,
    text,
)

from tunesmith_server import installation, migrate
from tunesmith_server.core.database import Base, Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import ApiKeyRow, BlobRow
from tunesmith_server.services import blobs

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
    database = Database(settings.database_url)
    installation.adopt(database, Storage(settings.storage_url))
    database.dispose()
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


def test_an_upgrade_records_the_content_of_every_kind_of_row(empty_url: str) -> None:
    """Database of version 0006: garbage collection of today must know what is ours."""
    migrate.upgrade(empty_url, "0006")
    engine = create_engine(empty_url)
    tables = MetaData()
    tables.reflect(engine)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("files", {"id": "file-1", "sha256": "a" * 64, "bytes": 1}),
        ("files", {"id": "file-2", "sha256": "a" * 64, "bytes": 1}),
        ("uploads", {"id": "upload-1"}),
        ("upload_parts", {"id": "part-1", "upload_id": "upload-1", "bytes": 2}),
        ("jobs", {"id": "ftjob-1"}),
        ("job_samples", {"job_id": "ftjob-1", "sha256": "b" * 64, "bytes": 3}),
        ("resume_points", {"job_id": "ftjob-1", "files": [{"sha256": "c" * 64, "bytes": 4}]}),
        ("adapters", {"id": "adp-1", "job_id": "ftjob-1", "files": [
            {"sha256": "d" * 64, "bytes": 5}, {"sha256": "e" * 64, "bytes": 6}
        ]}),
    ]  # fmt: skip
    with engine.begin() as connection:
        for name, values in rows:
            table = tables.tables[name]
            filled_in = {column.name: _filler(column) for column in table.columns} | values
            connection.execute(table.insert().values(filled_in))
    engine.dispose()
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.read() as session:
        recorded = {row.name: row.bytes for row in session.scalars(select(BlobRow))}
        assert not session.scalars(select(BlobRow.stored_at)).first(), "not known to be synced"
        assert not blobs.unreferenced(session, timedelta(days=1))
    database.dispose()
    assert recorded == {"part-1": 2, **{letter * 64: size for letter, size in zip(
        "abcde", (1, 3, 4, 5, 6), strict=True
    )}}  # fmt: skip


def _filler(column: Column[Any]) -> Any:  # Any: the column's type
    if column.nullable:
        return None
    kind = column.type
    if isinstance(kind, JSON):
        return {}
    if isinstance(kind, Boolean):
        return False
    return 0 if isinstance(kind, Integer | Float) else "x"


def _steps() -> list[Script]:
    """Oldest first."""
    return list(ScriptDirectory.from_config(migrate._config()).walk_revisions())[::-1]


def test_jobs_and_unread_files_survive_leases_and_versions(
    settings: Settings, wake_ups: FakeWakeUps
) -> None:
    """Rows from before the version of documents and the leases of readings."""
    with serving(settings, wake_ups) as server:
        job_id = server.create_job(server.good_file())
        unread = server.upload(b"later\n")
    migrate.downgrade(settings.database_url, "0009")
    engine = create_engine(settings.database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE files SET readings = 2 WHERE status = 'uploaded'"))
    engine.dispose()
    migrate.upgrade(settings.database_url)
    with serving(settings, wake_ups) as server:
        assert server.worker.claim("worker-2")["job_id"] == job_id
        lease = server.worker.claim_reading(unread, "light-2")
        result = {"ok": True, "format": "messages", "rows": 1}
        assert server.worker.read("result", unread, lease, result=result).status_code == 200
        with server.database.read() as session:
            assert session.scalar(text("SELECT document_version FROM jobs")) == 1
            assert session.scalar(text("SELECT max(readings) FROM files")) == 0
