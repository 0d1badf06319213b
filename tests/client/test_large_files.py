"""Large files travel in parts, survive interruptions, and are compared to the last byte."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import httpx
import pytest

from tunesmith import (
    APIConnectionError,
    BadRequestError,
    Client,
    InvalidArgumentError,
    UploadError,
    _files,
    _parts,
)
from tunesmith._upload_bar import UploadBar

from .fake_uploads import FakeUploads
from .fakes import client_of, refusal

CONTENT = bytes(range(256)) * 5 + b"end"
PARTS = 13


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeUploads:
    monkeypatch.setattr(_files, "_PARTS_ABOVE", 200)
    monkeypatch.setattr(_files, "_PART_SIZE", 100)
    return FakeUploads()


@pytest.fixture
def client(fake: FakeUploads) -> Client:
    return client_of(fake)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(CONTENT)
    return path


def memories(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").rglob("*.json"))


def break_at(fake: FakeUploads, number: int, name: str = "parts") -> None:
    """The network goes away for good at this request."""

    def refuse(asked: str, count: int) -> None:
        if asked == name and count >= number:
            raise httpx.ConnectError("gone")

    fake.before = refuse


def mend(fake: FakeUploads) -> None:
    fake.before = lambda name, number: None
    fake.asked.clear()


def test_a_large_file_is_sent_in_parts(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    file = client.files.create(file=path, purpose="evals")
    assert fake.asked == ["create", *["parts"] * PARTS, "complete"]
    assert (file.sha256, file.purpose) == (hashlib.sha256(CONTENT).hexdigest(), "evals")
    assert fake.md5s == [hashlib.md5(CONTENT).hexdigest()]
    assert {len(content) for content in fake.contents.values()} == {100, 83}
    assert memories(tmp_path) == []


def test_bytes_and_open_files_are_sent_in_parts_too(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    for file in (("a", CONTENT), io.BytesIO(CONTENT)):
        sent = client.files.create(file=file)
        assert sent.sha256 == hashlib.sha256(CONTENT).hexdigest()
    with path.open("rb") as stream:
        stream.seek(50)
        assert client.files.create(file=stream).bytes == len(CONTENT)
    assert fake.asked.count("create") == 3


def test_pieces_that_are_equal_travel_once(client: Client, fake: FakeUploads) -> None:
    file = client.files.create(file=("zeros", bytes(1000)))
    assert fake.asked.count("parts") == 1
    assert file.sha256 == hashlib.sha256(bytes(1000)).hexdigest()


def test_a_failed_part_is_sent_again(client: Client, fake: FakeUploads, path: Path) -> None:
    fake.before = lambda name, number: refusal(503) if (name, number) == ("parts", 3) else None
    assert client.files.create(file=path).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fake.asked.count("parts") == PARTS + 1


def test_a_part_that_arrives_damaged_is_sent_again(
    client: Client, fake: FakeUploads, path: Path
) -> None:
    damaged: list[int] = []

    def damage_once(content: bytes) -> bytes:
        damaged.append(1)
        return b"x" + content[1:] if len(damaged) == 4 else content

    fake.damage = damage_once
    assert client.files.create(file=path).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fake.asked.count("parts") == PARTS + 1


def test_parts_that_never_arrive_whole_are_an_error(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    fake.damage = lambda content: content[::-1]
    with pytest.raises(UploadError, match="3 times"):
        client.files.create(file=path)
    assert "complete" not in fake.asked
    assert memories(tmp_path) == []


def test_an_interrupted_upload_is_taken_up(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    break_at(fake, 6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    mend(fake)
    assert client.files.create(file=str(path)).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fake.asked == ["retrieve", *["parts"] * (PARTS - 5), "complete"]
    assert memories(tmp_path) == []


@pytest.mark.parametrize("what", ["content", "time", "purpose", "server"])
def test_another_file_purpose_or_server_begins_anew(
    client: Client, fake: FakeUploads, path: Path, what: str
) -> None:
    break_at(fake, 6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    mend(fake)
    if what == "content":
        told = path.stat()
        path.write_bytes(CONTENT[:-1] + b"!")
        os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    elif what == "time":
        os.utime(path, (1, 1))
    elif what == "server":
        client = Client("http://other.test/v1", "sk", transport=httpx.MockTransport(fake))
    file = client.files.create(file=path, purpose="evals" if what == "purpose" else "fine-tune")
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert fake.asked.count("create") == 1


def test_a_part_of_the_file_that_changed_unseen_is_sent_anew(
    client: Client, fake: FakeUploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same path, size, time, begin and end: only the parts' hashes tell."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(300_000))
    monkeypatch.setattr(_files, "_PART_SIZE", 100_000)
    told = path.stat()
    break_at(fake, 1, "complete")
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    mend(fake)
    with path.open("r+b") as stream:
        stream.seek(150_000)
        stream.write(b"changed")
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    file = client.files.create(file=path)
    assert fake.asked == ["retrieve", "parts", "complete"]
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("status", ["expired", "cancelled", "gone", "closes"])
def test_an_upload_that_is_over_is_begun_anew(
    client: Client, fake: FakeUploads, path: Path, status: str
) -> None:
    break_at(fake, 6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    mend(fake)
    if status == "gone":
        fake.uploads.clear()
    elif status == "closes":
        closed = refusal(400, code="upload_closed")
        fake.before = lambda name, number: closed if (name, number) == ("parts", 2) else None
    else:
        fake.uploads["upload-1"]["status"] = status
    assert client.files.create(file=path).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fake.asked.count("create") == 1


def test_a_completion_whose_reply_was_lost_is_found(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    send = fake._complete

    def lose(upload: dict[str, object], body: dict[str, object]) -> dict[str, object]:
        send(upload, body)
        break_at(fake, 1, "complete")
        raise httpx.ReadError("gone")

    fake._complete = lose  # type: ignore[method-assign]  # for this one test
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    mend(fake)
    fake._complete = send  # type: ignore[method-assign]  # as it was
    assert client.files.create(file=path).id == "file-1"
    assert fake.asked == ["retrieve"]
    assert memories(tmp_path) == []
    client.files.create(file=path)
    assert fake.asked[1] == "create", "once it is known to be over, asking again is a new upload"


def test_a_refusal_is_told_and_not_taken_up(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    wrong = refusal(400, code="upload_mismatch")
    fake.before = lambda name, number: wrong if name == "complete" else None
    with pytest.raises(BadRequestError):
        client.files.create(file=path)
    assert memories(tmp_path) == []


def test_a_file_that_the_server_has_otherwise_is_an_error(
    client: Client, fake: FakeUploads, path: Path
) -> None:
    def damage(name: str, number: int) -> None:
        if name == "complete":
            fake.contents["part-1"] = bytes(100)

    fake.before = damage
    with pytest.raises(UploadError, match="on the server"):
        client.files.create(file=path)


def test_a_file_that_shrinks_meanwhile_is_an_error(
    client: Client, fake: FakeUploads, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_files, "_PART_SIZE", 20_000)  # beyond what a reader buffers
    path.write_bytes(os.urandom(100_000))

    def shrink(name: str, number: int) -> None:
        if (name, number) == ("parts", 3):
            os.truncate(path, 60_000)

    fake.before = shrink
    with pytest.raises(UploadError, match="shorter"):
        client.files.create(file=path)


def test_without_a_cache_everything_but_the_resumption_works(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert client.files.create(file=path).id == "file-1"


def test_the_memory_holds_no_secret_and_is_the_users_own(
    client: Client, fake: FakeUploads, path: Path, tmp_path: Path
) -> None:
    break_at(fake, 6)
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    [memory] = memories(tmp_path)
    assert memory.parent.stat().st_mode & 0o077 == 0
    assert memory.read_text() == '{"upload_id": "upload-1", "expires_at": 99999999999}'
    for nonsense in ("", "[]", '{"upload_id": 3}', "\udcff"):
        memory.write_bytes(nonsense.encode(errors="surrogateescape"))
        mend(fake)
        break_at(fake, 1)
        with pytest.raises(APIConnectionError):
            client.files.create(file=path)
        assert fake.asked[0] == "create"


def test_what_no_server_takes_is_refused_before_the_network(
    client: Client, fake: FakeUploads, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_parts, "MAX_UPLOAD_BYTES", 1000)
    with pytest.raises(InvalidArgumentError, match="1,283 bytes"):
        client.files.create(file=path)
    with pytest.raises(InvalidArgumentError, match="part_size"):
        client.uploads.upload_file_chunked(
            file=b"x", filename="a", mime_type="text/plain", purpose="evals", part_size=2**30
        )
    assert fake.asked == []


def test_the_resource_has_the_openai_clients_shape(
    client: Client, fake: FakeUploads, path: Path
) -> None:
    upload = client.uploads.create(bytes=4, filename="a", mime_type="text/plain", purpose="evals")
    part = client.uploads.parts.create(upload.id, data=b"rows")
    assert client.uploads.retrieve(upload.id).parts == [part]
    done = client.uploads.complete(upload.id, part_ids=[part.id], md5="0" * 32)
    assert done.file
    assert (done.status, done.file.bytes) == ("completed", 4)
    chunked = client.uploads.upload_file_chunked(
        file=path, mime_type="text/jsonl", purpose="fine-tune", part_size=500
    )
    assert chunked.file
    assert chunked.file.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fake.uploads["upload-2"]["mime_type"] == "text/jsonl"
    fake.before = lambda name, number: httpx.Response(200, json={**fake.uploads["upload-1"]})
    assert client.uploads.cancel(upload.id).id == upload.id


def test_a_bar_shows_what_has_been_sent(
    client: Client, fake: FakeUploads, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    monkeypatch.setattr(UploadBar, "show", lambda bar, done: shown.append(done))
    client.files.create(file=path, progress=True)
    assert shown[0] == 100
    assert shown == sorted(shown)
    assert shown[-1] == len(CONTENT)
    shown.clear()
    fake.before = lambda name, number: httpx.Response(
        200, json={"id": "f", "bytes": 3, "created_at": 1, "filename": "a", "purpose": "evals"}
    )
    client.files.create(file=("small", b"abc"), progress=True)
    assert shown[-1] == 3
