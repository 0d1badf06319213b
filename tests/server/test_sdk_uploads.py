"""The SDK against the app over HTTP: a large upload, interrupted and continued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tunesmith import APIConnectionError, Client, NotFoundError
from tunesmith._sdk import files
from tunesmith_schema.queue import VALIDATE_FILE_TASK

from .actors import ROWS, Server
from .live import listening
from .test_uploads import blobs


class Breaking(httpx.HTTPTransport):
    """Transport that fails after a number of parts."""

    parts_left = 1_000

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/parts"):
            self.parts_left -= 1
            if self.parts_left < 0:
                raise httpx.ConnectError("gone")
        return super().handle_request(request)


@pytest.fixture
def network() -> Breaking:
    return Breaking()


@pytest.fixture
def client(
    server: Server, network: Breaking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Client]:
    monkeypatch.setattr(files, "_PARTS_ABOVE", 100_000)
    monkeypatch.setattr(files, "_PART_SIZE", 30_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    key = server.user.headers["authorization"].removeprefix("Bearer ")
    with (
        listening(server.app) as url,
        Client(f"{url}/v1", key, transport=network, max_retries=0) as client,
    ):
        yield client


def test_an_interrupted_upload_is_taken_up_and_stored_once(
    client: Client, server: Server, network: Breaking, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(b"%06d " % number + ROWS for number in range(2_000)))
    network.parts_left = 4
    with pytest.raises(APIConnectionError):
        client.files.create(file=path)
    needed = -(-path.stat().st_size // 30_000)
    network.parts_left = needed - 4
    file = client.files.create(file=path)
    assert network.parts_left == 0
    assert client.files.content(file.id) == path.read_bytes()
    assert server.wake_ups.sent == [(VALIDATE_FILE_TASK, file.id)]
    server.janitor().round()
    network.parts_left = 100
    again = client.uploads.upload_file_chunked(
        file=path.read_bytes(), filename="a", mime_type="text/jsonl", purpose="assistants"
    )
    assert again.file
    assert again.file.sha256 == file.sha256
    server.janitor().round()
    assert len(blobs(server)) == 1


def test_the_same_content_is_uploaded_once(client: Client, server: Server, tmp_path: Path) -> None:
    path, copy = tmp_path / "rows.jsonl", tmp_path / "copy.jsonl"
    path.write_bytes(ROWS)
    copy.write_bytes(ROWS)
    first, again = client.files.create(file=path), client.files.create(file=copy)
    assert (first.reused, again.reused, again.id) == (False, True, first.id)
    client.files.delete(first.id)
    second = client.files.create(file=path)
    assert not second.reused
    server.validate(second.id, ok=False)
    assert not client.files.create(file=path).reused


def test_a_base_url_without_v1_gets_a_hint(server: Server) -> None:
    with (
        listening(server.app) as url,
        Client(url, "sk-any", max_retries=0) as client,
        pytest.raises(NotFoundError) as caught,
    ):
        client.models.list()
    assert caught.value.hint
    assert f"{url}/v1" in caught.value.hint


def test_a_download_gives_back_what_was_sent_in_parts(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS * 3_000)
    file = client.files.create(file=path)
    client.files.download(file.id, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
