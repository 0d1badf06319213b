"""Sources of an upload, and its requests."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tunesmith import (
    APIConnectionError,
    Client,
    InternalServerError,
    InvalidArgumentError,
    WaitTimeoutError,
)

from .fakes import Clock, EmptyServer, client_of, job, page, refusal


def file(status: str = "processed", **fields: object) -> httpx.Response:
    body = {"id": "file-1", "bytes": 4, "created_at": 1, "filename": "a.jsonl", "status": status}
    return httpx.Response(200, json={**body, "purpose": "fine-tune", **fields})


def test_a_path_a_pair_and_an_open_file_are_all_sent(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "x"}\n')
    script = EmptyServer(file())
    files = client_of(script).files
    files.create(file=path)
    files.create(file=str(path))
    files.create(file=("rows.jsonl", path.read_bytes()))
    with path.open("rb") as stream:
        files.create(file=stream)
        assert not stream.closed
    for body in script.bodies:
        assert b'name="purpose"\r\n\r\nfine-tune' in body
        assert b'name="file"; filename="rows.jsonl"' in body
        assert b'\r\n\r\n{"text": "x"}\n\r\n' in body


def test_a_retried_upload_sends_the_whole_file_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"rows")
    script = EmptyServer(refusal(503), file())
    client_of(script).files.create(file=path)
    parts = [body.split(b"\r\n\r\n")[2][:4] for body in script.bodies]
    assert parts == [b"rows", b"rows"]


def test_a_large_file_is_never_whole_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as stream:
        stream.truncate(50_000_000)
    sizes: list[int] = []

    class Counting(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "GET":
                return httpx.Response(200, json=page())
            assert int(request.headers["content-length"]) > 50_000_000
            assert isinstance(request.stream, httpx.SyncByteStream)
            sizes.extend(len(chunk) for chunk in request.stream)
            return file()

    Client(api_key="sk", transport=Counting()).files.create(file=path)
    assert sum(sizes) > 50_000_000
    assert max(sizes) < 1_000_000


def test_a_pipe_is_sent_and_not_sent_twice() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"piped")
    os.close(writing)
    script = EmptyServer(refusal(500), file())
    with open(reading, "rb") as stream, pytest.raises(InternalServerError):
        client_of(script).files.create(file=stream)
    assert len(script.requests) == 1
    assert b"\r\n\r\npiped\r\n" in script.bodies[0]
    assert 'filename="upload"' in script.bodies[0].decode()


def test_a_pipe_that_has_sent_nothing_may_be_retried() -> None:
    attempts: list[int] = []

    def refuse_once(request: httpx.Request) -> httpx.Response:
        attempts.append(1)
        if len(attempts) == 1:
            raise httpx.ConnectError("refused")
        request.read()
        return file()

    class Pipe(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            return 0

    client = Client(api_key="sk", transport=Lazy(refuse_once))
    client._http.sleep = Clock().sleep
    client.files.create(file=io.BufferedReader(Pipe()))
    assert len(attempts) == 2


class Lazy(httpx.BaseTransport):
    """MockTransport reads the body before it answers; a refused connection does not."""

    def __init__(self, handler: Callable[[httpx.Request], httpx.Response]) -> None:
        self._handler = handler

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._handler(request)


def test_text_mode_and_unknown_purposes_are_refused_before_the_network(tmp_path: Path) -> None:
    script = EmptyServer(APIConnectionError("must not be asked"))
    files = client_of(script).files
    with pytest.raises(InvalidArgumentError, match="text mode"):
        files.create(file=io.StringIO("x"))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgumentError, match="no read"):
        files.create(file=7)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgumentError, match="'finetune' is not one of"):
        files.create(file=("a", b""), purpose="finetune")
    with pytest.raises(FileNotFoundError):
        files.create(file=tmp_path / "missing.jsonl")
    assert script.requests == []


def test_a_job_uploads_a_local_path_first(tmp_path: Path) -> None:
    path = tmp_path / ("long-name-" * 10) / "rows.jsonl"  # a file id has at most 64 characters
    path.parent.mkdir()
    path.write_bytes(b"rows")
    script = EmptyServer(file(id="file-7"), httpx.Response(200, json=job()))
    client_of(script).fine_tuning.jobs.create(
        model="tiny", training_file=str(path), validation_file="file-2", recipe={"lora": {"r": 8}}
    )
    assert [request.url.path for request in script.requests] == [
        "/v1/files",
        "/v1/fine_tuning/jobs",
    ]
    assert script.requests[1].read() == (
        b'{"model":"tiny","training_file":"file-7","validation_file":"file-2",'
        b'"recipe":{"lora":{"r":8}}}'
    )


def test_nothing_is_uploaded_for_a_job_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"rows")
    script = EmptyServer(file())
    with pytest.raises(InvalidArgumentError):
        client_of(script).fine_tuning.jobs.create(model="tiny", training_file=path, seed=-1)
    assert script.requests == []


def test_waiting_for_a_file_ends_when_it_is_read_or_time_is_up() -> None:
    clock = Clock()
    read = client_of(EmptyServer(file("uploaded"), file("error", status_details="bad")), clock)
    assert read.files.wait_for_processing("file-1").status_details == "bad"
    with pytest.raises(WaitTimeoutError, match="within 60 s"):
        client_of(EmptyServer(file("uploaded")), clock).files.wait_for_processing(
            "file-1", timeout=60
        )
    assert sum(clock.naps) <= 61
