"""Uploads in parts: created, filled in any order, completed once, checked to the byte."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from httpx2 import Response

from tunesmith_schema import MAX_PART_BYTES, MAX_UPLOAD_BYTES
from tunesmith_schema.queue import VALIDATE_FILE_TASK
from tunesmith_server.api.single_flight import SingleFlight

from .actors import ROWS, Server

PIECES = (b"one\n" * 50_000, b"two\n" * 70_000, b"three\n")
WHOLE = b"".join(PIECES)


def begin(server: Server, size: int = len(WHOLE), **fields: Any) -> str:
    reply = begin_reply(server, bytes=size, **fields)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def begin_reply(server: Server, **fields: Any) -> Response:
    body = {"bytes": 9, "filename": "a.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    return server.user.post("/v1/uploads", json=body | fields)


def send(server: Server, upload_id: str, content: bytes) -> Response:
    return server.user.post(f"/v1/uploads/{upload_id}/parts", files={"data": content})


def part(server: Server, upload_id: str, content: bytes) -> str:
    reply = send(server, upload_id, content)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def complete(server: Server, upload_id: str, part_ids: list[str], **fields: str) -> Response:
    body = {"part_ids": part_ids, **fields}
    return server.user.post(f"/v1/uploads/{upload_id}/complete", json=body)


def filled(server: Server) -> tuple[str, list[str]]:
    upload_id = begin(server)
    return upload_id, [part(server, upload_id, piece) for piece in PIECES]


def refused(reply: Response, code: str) -> str:
    """Message of a refusal that is not retryable."""
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, code), reply.text
    assert reply.headers["x-should-retry"] == "false"
    assert error["hint"] or code == "invalid_request", "pydantic has no advice"
    return str(error["message"])


def blobs(server: Server) -> list[str]:
    """Paths of all blobs, parts and unfinished files, without the installation id."""
    folder = server.settings.data_dir / "blobs"
    return [str(path.relative_to(folder)) for path in folder.glob("*/*") if path.is_file()]


def test_an_upload_is_announced(server: Server) -> None:
    reply = begin_reply(server, bytes=10, filename="../dir/rows.jsonl").json()
    assert reply["id"].startswith("upload-")
    assert (reply["object"], reply["status"], reply["bytes"]) == ("upload", "pending", 10)
    assert reply["expires_at"] == reply["created_at"] + 3600
    assert (reply["filename"], reply["file"]) == ("rows.jsonl", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bytes": 0}, "bytes"),
        ({"bytes": MAX_UPLOAD_BYTES + 1}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"purpose": "fun"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 60}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor"),
        ({"size": 3}, "size"),
    ],
)
def test_a_wrong_announcement_names_its_field(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    reply = begin_reply(server, **fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_parts_become_a_file_like_any_other(server: Server) -> None:
    upload_id, ids = filled(server)
    assert server.wake_ups.sent == []
    reply = complete(server, upload_id, ids, md5=hashlib.md5(WHOLE).hexdigest().upper()).json()
    assert reply["status"] == "completed"
    file = reply["file"]
    assert file["sha256"] == hashlib.sha256(WHOLE).hexdigest()
    assert (file["bytes"], file["status"]) == (len(WHOLE), "uploaded")
    assert server.wake_ups.sent == [(VALIDATE_FILE_TASK, file["id"])]
    assert server.user.get(f"/v1/files/{file['id']}/content").content == WHOLE
    assert server.user.json(f"/v1/files/{file['id']}") == file


def test_order_comes_from_the_list_of_parts_alone(server: Server) -> None:
    upload_id = begin(server)
    with ThreadPoolExecutor(3) as pool:
        ids = list(pool.map(lambda piece: part(server, upload_id, piece), PIECES[::-1]))
    file = complete(server, upload_id, ids[::-1]).json()["file"]
    assert file["sha256"] == hashlib.sha256(WHOLE).hexdigest()


def test_what_has_arrived_can_be_looked_up(server: Server) -> None:
    upload_id, ids = filled(server)
    upload = server.user.json(f"/v1/uploads/{upload_id}")
    assert [(item["id"], item["bytes"], item["sha256"]) for item in upload["parts"]] == [
        (part_id, len(piece), hashlib.sha256(piece).hexdigest())
        for part_id, piece in zip(ids, PIECES, strict=True)
    ]


def test_a_part_sent_again_is_the_same_part(server: Server) -> None:
    upload_id = begin(server, size=10)
    first, second = part(server, upload_id, b"12345"), part(server, upload_id, b"12345")
    assert first == second
    assert len(blobs(server)) == 1
    reply = complete(server, upload_id, [first, first]).json()
    assert server.user.get(f"/v1/files/{reply['file']['id']}/content").content == b"1234512345"


def test_completing_again_gives_the_same_answer(server: Server) -> None:
    upload_id, ids = filled(server)
    first = complete(server, upload_id, ids).json()
    server.janitor().round()
    assert complete(server, upload_id, ids).json() == first
    assert len(server.user.json("/v1/files")["data"]) == 1
    assert len(server.wake_ups.sent) == 1
    refused(complete(server, upload_id, ids[::-1]), "upload_closed")


def test_two_completions_at_once_make_one_file(server: Server) -> None:
    upload_id, ids = filled(server)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: complete(server, upload_id, ids), range(4)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.json()["file"]["id"] for reply in replies}) == 1
    assert len(server.wake_ups.sent) == 1


def test_the_same_content_is_stored_once(server: Server) -> None:
    plain = server.upload(ROWS)
    upload_id = begin(server, size=len(ROWS))
    ids = [part(server, upload_id, ROWS[:10]), part(server, upload_id, ROWS[10:])]
    file = complete(server, upload_id, ids).json()["file"]
    assert file["id"] != plain
    server.janitor().round()
    assert blobs(server) == [f"{file['sha256'][:2]}/{file['sha256']}"]


@pytest.mark.parametrize("missing", [slice(0, 2), slice(1, 3)])
def test_a_sum_other_than_announced_is_refused(server: Server, missing: slice) -> None:
    upload_id, ids = filled(server)
    message = refused(complete(server, upload_id, ids[missing]), "upload_mismatch")
    assert f"{len(WHOLE):,}" in message
    assert complete(server, upload_id, ids).status_code == 200, "the upload stays open"


def test_another_md5_is_refused(server: Server) -> None:
    upload_id, ids = filled(server)
    wrong = hashlib.md5(b"other").hexdigest()
    assert hashlib.md5(WHOLE).hexdigest() in refused(
        complete(server, upload_id, ids, md5=wrong), "upload_mismatch"
    )
    assert server.user.json("/v1/files")["data"] == []
    refused(complete(server, upload_id, ids, md5="no md5"), "invalid_request")


def test_a_part_of_another_upload_is_refused(server: Server) -> None:
    upload_id, ids = filled(server)
    other = begin(server)
    assert ids[0] in refused(complete(server, other, ids), "not_found")
    refused(complete(server, upload_id, []), "invalid_request")


def test_a_part_that_cannot_belong_is_refused(server: Server) -> None:
    upload_id = begin(server, size=10)
    refused(send(server, upload_id, b""), "invalid_request")
    refused(send(server, upload_id, b"12345678901"), "invalid_request")
    part(server, upload_id, b"1234567890")
    part(server, upload_id, b"abcdefghij")
    assert "20 bytes" in refused(send(server, upload_id, b"x"), "invalid_request")
    assert len(blobs(server)) == 2


def test_a_part_over_64_mib_is_refused(server: Server) -> None:
    upload_id = begin(server, size=MAX_UPLOAD_BYTES)
    headers = {"content-length": str(MAX_PART_BYTES + 100_000)}
    reply = server.user.post(f"/v1/uploads/{upload_id}/parts", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


def test_a_cancelled_upload_takes_nothing_more(server: Server) -> None:
    upload_id, ids = filled(server)
    assert server.user.post(f"/v1/uploads/{upload_id}/cancel").json()["status"] == "cancelled"
    assert server.user.post(f"/v1/uploads/{upload_id}/cancel").json()["status"] == "cancelled"
    refused(send(server, upload_id, b"more"), "upload_closed")
    refused(complete(server, upload_id, ids), "upload_closed")


def test_a_completed_upload_takes_nothing_more(server: Server) -> None:
    upload_id, ids = filled(server)
    complete(server, upload_id, ids)
    refused(send(server, upload_id, b"more"), "upload_closed")
    refused(server.user.post(f"/v1/uploads/{upload_id}/cancel"), "upload_closed")


def test_the_file_expires_as_asked(server: Server) -> None:
    after = {"anchor": "created_at", "seconds": 7200}
    upload_id = begin(server, size=3, expires_after=after, purpose="assistants")
    file = complete(server, upload_id, [part(server, upload_id, b"abc")]).json()["file"]
    assert file["expires_at"] == pytest.approx(file["created_at"] + 7200, abs=1)
    assert (file["status"], server.wake_ups.sent) == ("processed", [])


def test_an_unknown_upload_is_not_found(server: Server) -> None:
    assert server.user.get("/v1/uploads/upload-none").status_code == 404
    assert send(server, "upload-none", b"x").status_code == 404
    assert complete(server, "upload-none", ["part-1"]).status_code == 404
    assert server.user.post("/v1/uploads/upload-none/cancel").status_code == 404
    assert blobs(server) == []


def test_a_deleted_file_leaves_its_upload_without_one(server: Server) -> None:
    upload_id, ids = filled(server)
    file = complete(server, upload_id, ids).json()["file"]
    server.user.delete(f"/v1/files/{file['id']}")
    again = complete(server, upload_id, ids).json()
    assert (again["status"], again["file"]) == ("completed", None)


def test_requests_of_one_upload_run_in_turn_and_equal_requests_once() -> None:
    ran: list[str] = []

    async def work(request: str) -> str:
        ran.append(request)
        await asyncio.sleep(0.01)
        return request

    async def send_all() -> list[str]:
        flights = SingleFlight[str]()
        runs = (flights.run("upload-1", one, partial(work, one)) for one in ("a", "b", "a"))
        return await asyncio.gather(*runs)

    assert asyncio.run(send_all()) == ["a", "b", "a"]
    assert ran == ["a", "b"]
