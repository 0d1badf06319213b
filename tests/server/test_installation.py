"""Installation id: the database and the store belong together, or the API refuses to start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import delete

from tunesmith_server import installation
from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.embedded import check_installation
from tunesmith_server.installation import WrongStore, adopt, ensure
from tunesmith_server.models import BlobRow, InstallationRow
from tunesmith_server.services import blobs

from .actors import FakeWakeUps, serving


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage((tmp_path / "store").as_uri())


def record(database: Database, storage: Storage, name: str, *, stored: bool) -> None:
    with database.write.begin() as session:
        blobs.use(session, {name: 3})
    if stored:
        storage.put_pieces([b"abc"], name)


def forget_id(database: Database) -> None:
    with database.write.begin() as session:
        session.execute(delete(InstallationRow))


def test_the_first_start_writes_both(database: Database, storage: Storage) -> None:
    first = ensure(database, storage)
    assert first.startswith("inst-")
    assert storage.installation_id() == first
    assert ensure(database, storage) == first


def test_starts_at_the_same_time_agree(database: Database, storage: Storage) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = {
            start.result(30) for start in [pool.submit(ensure, database, storage) for _ in range(4)]
        }
    assert ids == {storage.installation_id()}


def test_a_start_that_a_crash_ended_between_both_is_completed(
    database: Database, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(storage, "set_installation_id", crash)
        with pytest.raises(KeyboardInterrupt):
            ensure(database, storage)
    assert ensure(database, storage) == storage.installation_id()


def test_an_upgrade_adopts_the_store_that_has_its_files(
    database: Database, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    record(database, storage, "ab" * 32, stored=True)
    record(database, storage, "cd" * 32, stored=False)
    with caplog.at_level(logging.INFO):
        owner = ensure(database, storage)
    assert storage.installation_id() == owner
    assert f"belongs to installation {owner} from now on" in caplog.text


def test_an_upgrade_on_the_wrong_store_is_refused(database: Database, storage: Storage) -> None:
    record(database, storage, "ab" * 32, stored=False)
    for _ in range(2):
        with pytest.raises(WrongStore, match="none of the 1 newest") as caught:
            ensure(database, storage)
        assert "TUNESMITH_STORAGE_URL" in str(caught.value)
        assert "`tunesmith gc --adopt`" in str(caught.value)
    assert storage.installation_id() is None


def test_a_new_database_on_a_store_of_another_is_refused(
    database: Database, storage: Storage
) -> None:
    owner = ensure(database, storage)
    forget_id(database)
    with pytest.raises(WrongStore, match=f"belongs to installation {owner}.*no id") as caught:
        ensure(database, storage)
    assert storage.url in str(caught.value)


def test_two_ids_that_differ_are_refused_until_an_operator_adopts(
    database: Database, storage: Storage
) -> None:
    owner = ensure(database, storage)
    storage.set_installation_id("inst-other", replace=True)
    with pytest.raises(WrongStore, match=f"installation inst-other, and .*installation {owner}:"):
        ensure(database, storage)
    assert adopt(database, storage) == ensure(database, storage) == owner


def test_an_emptied_store_is_refused(database: Database, storage: Storage, tmp_path: Path) -> None:
    ensure(database, storage)
    record(database, storage, "ab" * 32, stored=True)
    with pytest.raises(WrongStore, match="has no installation id"):
        ensure(database, Storage((tmp_path / "other").as_uri()))


def test_the_api_and_serve_refuse_to_start(settings: Settings, wake_ups: FakeWakeUps) -> None:
    with serving(settings, wake_ups) as server:
        server.storage.set_installation_id("inst-other", replace=True)
    with pytest.raises(WrongStore), serving(settings, wake_ups):
        pass
    with pytest.raises(WrongStore):
        check_installation(settings)


def test_content_in_use_is_recorded_by_every_way_of_writing(
    settings: Settings, wake_ups: FakeWakeUps
) -> None:
    """Otherwise it would never be deleted."""
    with serving(settings, wake_ups) as server:
        server.create_job(server.good_file())
        claim = server.worker.claim()
        server.worker.put_blob(claim, b"reported by no event")
        server.worker.succeed(claim)
        with server.database.read() as session:
            recorded = {row.name: row for row in session.query(BlobRow)}
        folder = settings.data_dir / "blobs"
        stored = {path.name: path for path in folder.glob("*/*")}
        assert recorded.keys() == stored.keys()
        assert len(stored) == 5
        for name, path in stored.items():
            assert recorded[name].bytes == path.stat().st_size
            assert recorded[name].stored_at
    assert installation.WrongStore.__mro__[1] is ValueError, "the command line prints it"
