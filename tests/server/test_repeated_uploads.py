"""Uploads with an Idempotency-Key: a client whose connection broke repeats the request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from httpx2 import Response

from .actors import Server
from .callers import Caller

ROWS = b'{"messages": []}\n'


def send(caller: Caller, content: bytes = ROWS, key: str | None = "key") -> Response:
    return caller.post(
        "/v1/files",
        files={"file": ("rows.jsonl", content)},
        data={"purpose": "fine-tune"},
        headers={"Idempotency-Key": key} if key else {},
    )


def listed(server: Server) -> list[str]:
    return [file["id"] for file in server.user.json("/v1/files")["data"]]


def test_a_repeated_upload_creates_one_file(server: Server) -> None:
    first, again = send(server.user), send(server.user)
    assert first.json() == again.json()
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert listed(server) == [first.json()["id"]]


def test_without_a_key_or_with_another_each_upload_creates_a_file(server: Server) -> None:
    ids = {send(server.user, key=key).json()["id"] for key in (None, None, "one", "two")}
    assert len(ids) == 4 == len(listed(server))


def test_a_key_of_another_content_is_refused(server: Server) -> None:
    send(server.user)
    reply = send(server.user, b'{"messages": [1]}\n')
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "idempotency_conflict")


def test_a_deleted_file_leaves_its_key_free(server: Server) -> None:
    file_id = send(server.user).json()["id"]
    server.user.delete(f"/v1/files/{file_id}")
    assert send(server.user).json()["id"] != file_id


def test_ten_uploads_with_one_key_create_one_file(server: Server) -> None:
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda _: send(server.user), range(10)))
    assert {reply.status_code for reply in replies} <= {200, 503}, "503: in progress, ask again"
    assert len({reply.json()["id"] for reply in replies if reply.is_success}) == 1
    assert len(listed(server)) == 1
