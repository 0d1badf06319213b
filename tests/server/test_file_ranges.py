"""Range requests for parts of a file (RFC 9110)."""

from __future__ import annotations

import pytest

from .actors import Server

pytestmark = pytest.mark.parametrize("storage_url", ["local", "s3"], indirect=True)

CONTENT = bytes(range(256)) * 10  # 2,560 bytes


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=100-199", 100, 200),
        ("bytes=2559-2559", 2559, 2560),
        ("bytes=2500-", 2500, 2560),
        ("bytes=0-", 0, 2560),
        ("bytes=2500-99999", 2500, 2560),
        ("bytes=-1", 2559, 2560),
        ("bytes=-60", 2500, 2560),
        ("bytes=-99999", 0, 2560),
        ("Bytes=0-0", 0, 1),
    ],
)
def test_a_range_gives_its_bytes(server: Server, wanted: str, start: int, end: int) -> None:
    file_id = server.upload(CONTENT)
    reply = server.user.get(f"/v1/files/{file_id}/content", headers={"range": wanted})
    assert reply.status_code == 206
    assert reply.content == CONTENT[start:end]
    assert reply.headers["content-range"] == f"bytes {start}-{end - 1}/2560"
    assert reply.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("wanted", [None, "", "items=0-5", "lines=-1"])
def test_without_a_range_that_we_know_everything_comes(server: Server, wanted: str | None) -> None:
    file_id = server.upload(CONTENT)
    headers = {} if wanted is None else {"range": wanted}
    reply = server.user.get(f"/v1/files/{file_id}/content", headers=headers)
    assert (reply.status_code, reply.content) == (200, CONTENT)
    assert reply.headers["content-length"] == "2560"
    assert reply.headers["accept-ranges"] == "bytes"
    assert "content-range" not in reply.headers


@pytest.mark.parametrize("wanted", ["bytes=2560-", "bytes=9999-10000", "bytes=-0", "bytes=5-2"])
def test_a_range_outside_the_file_is_416(server: Server, wanted: str) -> None:
    file_id = server.upload(CONTENT)
    reply = server.user.get(f"/v1/files/{file_id}/content", headers={"range": wanted})
    assert reply.status_code == 416
    assert reply.json()["error"]["code"] == "range_not_satisfiable"
    assert reply.headers["content-range"] == "bytes */2560", "so that a resuming client knows"


@pytest.mark.parametrize(
    "wanted", ["bytes=", "bytes=-", "bytes=a-b", "bytes=0-1,3-4", "bytes=1", f"bytes={'9' * 5000}-"]
)
def test_a_malformed_range_is_the_callers_error(server: Server, wanted: str) -> None:
    file_id = server.upload(CONTENT)
    reply = server.user.get(f"/v1/files/{file_id}/content", headers={"range": wanted})
    assert reply.status_code == 400


def test_pieces_make_up_the_whole(server: Server) -> None:
    path = f"/v1/files/{server.upload(CONTENT)}/content"
    pieces = [
        server.user.get(path, headers={"range": f"bytes={start}-{start + 699}"}).content
        for start in range(0, 2560, 700)
    ]
    assert b"".join(pieces) == CONTENT


def test_the_hash_is_the_etag(server: Server) -> None:
    file_id = server.upload(CONTENT)
    sha256 = server.user.json(f"/v1/files/{file_id}")["sha256"]
    reply = server.user.get(f"/v1/files/{file_id}/content")
    assert reply.headers["etag"] == f'"{sha256}"'


def test_workers_read_the_same_bytes(server: Server) -> None:
    file_id = server.upload(CONTENT)
    server.worker.claim_reading(file_id)
    path = f"/internal/files/{file_id}/content"
    assert server.worker.get(path).content == CONTENT
    assert server.worker.get(path, headers={"range": "bytes=-3"}).content == CONTENT[-3:]
