"""Size limits of requests, and refusal of bodies without a key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tunesmith_server.body_limits import JSON_BYTES

from .actors import Server

HEAD = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
)
MULTIPART = {"content-type": "multipart/form-data; boundary=b"}


def _body(size: int, read: list[int]) -> Iterator[bytes]:
    """A multipart body in pieces, without a Content-Length; `read` counts the pieces taken."""
    yield HEAD
    for _ in range(size // 1000):
        read.append(1)
        yield b"x" * 1000
    yield b"\r\n--b--\r\n"


def test_an_upload_within_the_limit_passes(server: Server) -> None:
    reply = server.user.post("/v1/files", content=_body(90_000, []), headers=MULTIPART)
    assert reply.status_code == 200, reply.text
    assert reply.json()["bytes"] == 90_000


def test_an_announced_size_over_the_limit_is_refused(server: Server) -> None:
    content = HEAD + b"x" * 1_000_000
    reply = server.user.post("/v1/files", content=content, headers=MULTIPART)
    assert reply.status_code == 413
    assert "TUNESMITH_MAX_FILE_BYTES" in reply.json()["error"]["hint"]


def test_a_size_that_nobody_announced_is_counted(server: Server) -> None:
    reply = server.user.post("/v1/files", content=_body(1_000_000, []), headers=MULTIPART)
    assert reply.status_code == 413, reply.text
    assert reply.json()["error"]["code"] == "request_too_large"
    assert server.user.json("/v1/files")["data"] == []


def test_json_has_a_smaller_limit_of_its_own(server: Server) -> None:
    body = b'{"model": "' + b"x" * JSON_BYTES + b'"}'
    assert server.user.post("/v1/fine_tuning/jobs", content=body).status_code == 413
    pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    assert server.user.post("/v1/fine_tuning/jobs", content=pieces).status_code == 413


def test_weights_have_no_limit(server: Server) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    reply = server.worker.put_blob(claim, b"\0" * (JSON_BYTES + server.settings.max_file_bytes))
    assert reply.status_code == 200


@pytest.mark.parametrize("length", ["-1", "ten"])
def test_a_nonsense_length_does_no_harm(server: Server, length: str) -> None:
    headers = {"content-length": length}
    reply = server.user.post("/v1/fine_tuning/jobs", content=b"{}", headers=headers)
    assert reply.status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/files", HEAD), ("/v1/fine_tuning/jobs", b"{"), ("/internal/jobs/claim", b"{")],
)
def test_a_stranger_is_refused_before_the_body_is_read(
    server: Server, path: str, body: bytes
) -> None:
    read: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        for _ in range(50):
            read.append(body)
            yield body

    reply = server.anonymous.post(path, content=pieces(), headers=MULTIPART)
    assert reply.status_code == 401
    assert read == []
