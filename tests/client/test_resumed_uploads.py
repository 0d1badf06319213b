"""An interrupted upload is resumed by the next call for the same file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import httpx
import pytest

from tunesmith import (
    APIConnectionError,
    BadRequestError,
    Client,
)
from tunesmith._sdk import files

from .fake_uploads import CONTENT, PARTS, FakeUploads, memories
from .fakes import refusal


def test_an_interrupted_upload_is_resumed(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    fake.break_at(6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    fake.mend()
    assert client.files.create(file=str(path)).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fake.asked == ["retrieve", *["parts"] * (PARTS - 5), "complete"]
    assert memories(tmp_path) == []


@pytest.mark.parametrize("what", ["content", "time", "purpose", "server"])
def test_another_file_purpose_or_server_starts_a_new_upload(
    client: Client, fake: FakeUploads, path: Path, what: str
) -> None:
    fake.break_at(6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    fake.mend()
    if what == "content":
        status = path.stat()
        path.write_bytes(CONTENT[:-1] + b"!")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif what == "time":
        os.utime(path, (1, 1))
    elif what == "server":
        client = Client("http://other.test/v1", "sk", transport=httpx.MockTransport(fake))
    file = client.files.create(file=path, purpose="evals" if what == "purpose" else "fine-tune")
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert fake.asked.count("create") == 1


def test_a_part_that_changed_unnoticed_is_sent_again(
    client: Client, fake: FakeUploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path, size, time and both ends are equal: only the hashes of the parts differ."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(300_000))
    monkeypatch.setattr(files, "_PART_SIZE", 100_000)
    status = path.stat()
    fake.break_at(1, "complete")
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    fake.mend()
    with path.open("r+b") as stream:
        stream.seek(150_000)
        stream.write(b"changed")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    file = client.files.create(file=path)
    assert fake.asked == ["retrieve", "parts", "complete"]
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("status", ["expired", "cancelled", "gone", "closes"])
def test_an_upload_that_is_closed_is_replaced_by_a_new_one(
    client: Client, fake: FakeUploads, path: Path, status: str
) -> None:
    fake.break_at(6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    fake.mend()
    if status == "gone":
        fake.uploads.clear()
    elif status == "closes":
        closed = refusal(400, code="upload_closed")
        fake.before = lambda name, number: closed if (name, number) == ("parts", 2) else None
    else:
        fake.uploads["upload-1"]["status"] = status
    assert client.files.create(file=path).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fake.asked.count("create") == 1


def test_a_completed_upload_is_recognised_after_a_lost_reply(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    send = fake._complete

    def lose(upload: dict[str, object], body: dict[str, object]) -> dict[str, object]:
        send(upload, body)
        fake.break_at(1, "complete")
        raise httpx.ReadError("gone")

    fake._complete = lose  # type: ignore[method-assign]  # for this one test
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    fake.mend()
    fake._complete = send  # type: ignore[method-assign]  # as it was
    assert client.files.create(file=path).id == "file-1"
    assert fake.asked == ["retrieve"]
    assert memories(tmp_path) == []
    client.files.create(file=path)
    assert fake.asked[1] == "create", "once it is known to be over, asking again is a new upload"


def test_a_refused_upload_is_not_resumed(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    wrong = refusal(400, code="upload_mismatch")
    fake.before = lambda name, number: wrong if name == "complete" else None
    with pytest.raises(BadRequestError):
        client.files.create(file=path)
    assert memories(tmp_path) == []


def test_without_a_cache_everything_but_the_resumption_works(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert client.files.create(file=path).id == "file-1"


def test_the_memory_holds_no_secret_and_is_the_users_own(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    fake.break_at(6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    [memory] = memories(tmp_path)
    assert memory.parent.stat().st_mode & 0o077 == 0
    assert memory.read_text() == '{"upload_id": "upload-1", "expires_at": 99999999999}'
    for nonsense in ("", "[]", '{"upload_id": 3}', "\udcff"):
        memory.write_bytes(nonsense.encode(errors="surrogateescape"))
        fake.mend()
        fake.break_at(1)
        with pytest.raises(APIConnectionError):
            client.files.create(file=path)
        assert fake.asked[0] == "create"
