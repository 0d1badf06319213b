"""Uploads of large files in parts, compared to the last byte."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import httpx
import pytest

from tunesmith import (
    Client,
    InvalidArgumentError,
    UploadError,
)
from tunesmith._sdk import files
from tunesmith._transfer import parts
from tunesmith._transfer.upload_bar import UploadBar

from .fake_uploads import CONTENT, PARTS, FakeUploads, memories
from .fakes import refusal


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


def test_equal_parts_are_sent_once(client: Client, fake: FakeUploads) -> None:
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
    monkeypatch.setattr(files, "_PART_SIZE", 20_000)  # beyond what a reader buffers
    path.write_bytes(os.urandom(100_000))

    def shrink(name: str, number: int) -> None:
        if (name, number) == ("parts", 3):
            os.truncate(path, 60_000)

    fake.before = shrink
    with pytest.raises(UploadError, match="shorter"):
        client.files.create(file=path)


def test_a_file_beyond_the_limits_is_refused_before_the_network(
    client: Client, fake: FakeUploads, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_UPLOAD_BYTES", 1200)
    monkeypatch.setattr(parts, "MAX_UPLOAD_PARTS", 10)
    with pytest.raises(InvalidArgumentError, match="1,283 bytes"):
        client.files.create(file=path)
    with pytest.raises(InvalidArgumentError, match="part_size"):
        client.uploads.upload_file_chunked(
            file=b"x", filename="a", mime_type="text/plain", purpose="evals", part_size=2**30
        )
    with pytest.raises(InvalidArgumentError, match="more than 10 parts"):
        client.uploads.upload_file_chunked(
            file=bytes(1_001), filename="a", mime_type="text/plain", purpose="evals", part_size=100
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
