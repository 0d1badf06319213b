"""Storage: the same behaviour from a local directory and from S3."""

from __future__ import annotations

import gc
import hashlib
from io import BytesIO
from pathlib import Path

import pytest

from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage, StorageUnavailable
from tunesmith_server.embedded import StartError, check_backends

from ..stacks import S3
from .actors import FakeWakeUps, serving

LARGE = bytes(range(256)) * 50_000  # 12.8 MB: more than one part of a multipart upload


@pytest.fixture(params=["local", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    if request.param == "local":
        return Storage((tmp_path / "blobs").as_uri())
    s3: S3 = request.getfixturevalue("s3")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return Storage(s3.new_url())


def put(storage: Storage, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    storage.put(BytesIO(content), sha256)
    return sha256


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["empty", "small", "in-parts"])
def test_what_goes_in_comes_out(storage: Storage, content: bytes) -> None:
    sha256 = put(storage, content)
    assert storage.size(sha256) == len(content)
    assert b"".join(storage.stream(sha256, 0, len(content))) == content


def test_a_part_is_that_part(storage: Storage) -> None:
    sha256 = put(storage, LARGE)
    assert b"".join(storage.stream(sha256, 5_000_001, 9_999_999)) == LARGE[5_000_001:9_999_999]


def test_what_is_not_there_has_no_size_and_no_content(storage: Storage) -> None:
    assert storage.size("0" * 64) is None
    with pytest.raises(FileNotFoundError):
        storage.stream("0" * 64, 0, 1)


def test_content_that_nobody_reads_keeps_no_file_open(storage: Storage) -> None:
    del (unread := {"pieces": storage.stream(put(storage, b"x"), 0, 1)})["pieces"]
    gc.collect()  # pytest turns the ResourceWarning of an open file into an error
    assert not unread


def test_what_is_deleted_is_gone_and_may_be_missing(storage: Storage) -> None:
    kept, deleted = put(storage, b"kept"), put(storage, b"deleted")
    for _ in range(2):
        storage.delete([deleted, "0" * 64, "part-0"])
    assert (storage.size(kept), storage.size(deleted)) == (4, None)


def test_content_of_another_size_is_replaced(storage: Storage) -> None:
    sha256 = hashlib.sha256(b"content").hexdigest()
    storage.put_pieces([b"cont"], sha256)
    assert not storage.is_good(sha256, 7)
    storage.put(BytesIO(b"content"), sha256)
    assert storage.is_good(sha256, 7)
    assert b"".join(storage.stream(sha256, 0, 7)) == b"content"


def test_the_first_installation_id_stays_unless_it_is_replaced(storage: Storage) -> None:
    assert storage.installation_id() is None
    for installation in ("inst-1", "inst-2"):
        storage.set_installation_id(installation)
        assert storage.installation_id() == "inst-1"
    storage.set_installation_id("inst-3", replace=True)
    assert storage.installation_id() == "inst-3"


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    Storage((tmp_path / "blobs").as_uri()).check()
    assert list((tmp_path / "blobs").iterdir()) == []


@pytest.mark.parametrize("url", ["file://blobs/here", "file://host/blobs"])
def test_a_local_url_with_a_host_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="three slashes"):
        Storage(url)


def test_a_store_below_the_same_bucket_is_another_store(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    ours, theirs = Storage(s3.new_url()), Storage(s3.new_url())
    sha256 = put(theirs, b"theirs")
    assert ours.size(sha256) is None
    ours.delete([sha256])
    assert theirs.size(sha256) == 6


def test_a_bucket_that_is_not_there_is_said_before_anything_starts(
    s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings(data_dir=tmp_path, storage_url="s3://missing-bucket")
    with pytest.raises(StartError, match=r"TUNESMITH_STORAGE_URL: s3://missing-bucket.*404"):
        check_backends(settings)


def test_a_database_that_does_not_answer_is_said_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://ann:hunter2@127.0.0.1:1/tunesmith"
    with pytest.raises(StartError, match=r"TUNESMITH_DATABASE_URL: .*refused") as caught:
        check_backends(Settings(data_dir=tmp_path, database_url=url))
    assert "hunter2" not in str(caught.value)


def test_a_store_that_fails_is_a_reason_to_try_again(
    settings: Settings, wake_ups: FakeWakeUps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageUnavailable("s3://bucket: no answer")

    with serving(settings, wake_ups) as server:
        monkeypatch.setattr(server.storage, "put", fail)
        reply = server.user.post(
            "/v1/files", files={"file": ("a.jsonl", b"{}")}, data={"purpose": "fine-tune"}
        )
    assert reply.status_code == 503
    assert reply.json()["error"]["retryable"]
    assert "bucket" not in reply.text
