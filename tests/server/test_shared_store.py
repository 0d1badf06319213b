"""A store that other programs use too: only content that our own rows name is deleted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore.store import ObjectStore, from_url

from tunesmith_server import migrate
from tunesmith_server.core.settings import Settings

from .actors import FakeWakeUps, Server, serving

ALL_AGES = timedelta(seconds=-5)
HASH = "ab" + "0" * 62
THEIRS = {
    "README": b"read me",
    "photos/2019/cat.jpg": b"meow",
    f"ab/{HASH}": b"content of an installation that shares the bucket",
    "parts/part-0123456789abcdef01234567": b"their part",
    f"models/{HASH}": b"weights",
}
STAGING = {
    f"photos/{HASH}#1": b"not in our folder",
    "ab/cat.jpg#1": b"not our name",
    "ab/.cat.jpg.0123456789abcdef.part": b"not our name",
}
"""Names that look like unfinished writes of ours but are not. Only a directory can hold them."""


@pytest.fixture(params=["local", "s3"])
def foreign(
    request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    """Direct access to the store of `settings`, which has other people's objects in its root."""
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        settings.storage_url = s3.new_url()
        options: Any = {"allow_http": True}  # Any: obstore's TypedDict
        store = from_url(settings.storage_url, client_options=options)
    else:
        settings.data_dir.mkdir(mode=0o700, exist_ok=True)
        store = from_url(settings.storage_url, mkdir=True)
        for path, content in STAGING.items():
            file = settings.data_dir / "blobs" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    for path, content in THEIRS.items():
        store.put(path, content)
    return store


def untouched(store: ObjectStore, blobs: Path) -> bool:
    in_store = all(bytes(store.get(path).bytes()) == THEIRS[path] for path in THEIRS)
    if not blobs.is_dir():
        return in_store
    return in_store and all((blobs / path).read_bytes() == STAGING[path] for path in STAGING)


def test_a_sweep_leaves_other_peoples_objects(
    settings: Settings, wake_ups: FakeWakeUps, foreign: ObjectStore
) -> None:
    with serving(settings, wake_ups) as server:
        server.user.delete(f"/v1/files/{server.upload(b'ours')}")
        assert server.janitor().sweep(ALL_AGES) == 1, "ours, deleted"
        assert untouched(foreign, settings.data_dir / "blobs")


def test_an_api_on_an_empty_database_deletes_nothing(
    settings: Settings, wake_ups: FakeWakeUps, foreign: ObjectStore, tmp_path: Path
) -> None:
    with serving(settings, wake_ups) as server:
        file_id = server.upload(b"the only copy")
    empty = settings.model_copy(update={"database_url": f"sqlite:///{tmp_path / 'empty.db'}"})
    migrate.upgrade(empty.database_url)
    with pytest.raises(ValueError, match="belongs to installation"), serving(empty, wake_ups) as it:
        it.janitor().sweep(ALL_AGES)
    with serving(settings, wake_ups) as server:
        path = f"/v1/files/{file_id}/content"
        assert server.user.get(path).content == b"the only copy"
    assert untouched(foreign, settings.data_dir / "blobs")


def test_a_database_that_was_emptied_under_a_running_api_deletes_nothing(server: Server) -> None:
    file_id = server.upload(b"the only copy")
    folder = server.settings.data_dir / "blobs"
    migrate.downgrade(server.settings.database_url, "base")
    migrate.upgrade(server.settings.database_url)
    with pytest.raises(ValueError, match="belongs to installation"):
        server.janitor().sweep(ALL_AGES)
    assert any(path.read_bytes() == b"the only copy" for path in folder.glob("??/*")), file_id
