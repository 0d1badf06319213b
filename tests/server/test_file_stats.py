"""Lengths, duplicates and overlap of data sets."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from sqlalchemy import select

from tunesmith_server.models import FileStatsRow

from .actors import Server
from .teams import caller, new_project

STATS = {
    "rows": 4, "duplicates": 1, "repeated": [{"row": 1, "count": 2, "next": 3}],
    "lengths": {
        "total": 100, "min": 10, "median": 20, "p95": 40, "max": 50,
        "histogram": [{"upto": 20, "rows": 3}, {"upto": 50, "rows": 1}],
    },
}  # fmt: skip


def packed(*hashes: int) -> str:
    return base64.b64encode(struct.pack(f"<{len(hashes)}Q", *hashes)).decode()


def read(server: Server, content: bytes, hashes: str | None, **stats: Any) -> str:
    """Upload a file, and report its figures as a light worker does."""
    file_id = server.upload(content)
    lease = server.worker.claim_reading(file_id)
    reply = server.worker.read(
        "result", file_id, lease, result={"ok": True, "format": "text", "rows": 4},
        stats=STATS | stats, row_hashes=hashes,
    )  # fmt: skip
    assert reply.status_code == 200, reply.text
    return file_id


def test_figures_of_a_file_are_stored_with_its_verdict(server: Server) -> None:
    file_id = read(server, b"{}\n", None)
    found = server.user.json(f"/v1/files/{file_id}/stats")
    assert found == {"object": "file.stats", **STATS}
    assert server.user.delete(f"/v1/files/{file_id}").status_code == 200
    with server.database.read() as session:
        assert session.scalars(select(FileStatsRow.file_id)).all() == []


def test_equal_rows_of_two_files_are_found(server: Server) -> None:
    one = read(server, b"1\n", packed(7, 0, 7, 8, 9))
    two = read(server, b"2\n", packed(5, 9, 0, 7, 9))
    found = server.user.json(f"/v1/files/{one}/overlap", params={"with": two})
    assert found == {
        "object": "file.overlap", "file_id": one, "other_id": two, "rows": 3, "share": 0.75,
        "pairs": [{"row": 1, "other": 4}, {"row": 3, "other": 4}, {"row": 5, "other": 2}],
    }  # fmt: skip
    back = server.user.json(f"/v1/files/{two}/overlap", params={"with": one})
    assert (back["rows"], back["share"]) == (3, 0.75)
    empty = read(server, b"3\n", "")
    found = server.user.json(f"/v1/files/{empty}/overlap", params={"with": one})
    assert (found["rows"], found["share"], found["pairs"]) == (0, 0.0, [])


def test_a_file_without_figures_says_why(server: Server) -> None:
    waiting = server.upload(b"{}\n")
    for path in (f"/v1/files/{waiting}/stats", f"/v1/files/{waiting}/overlap?with={waiting}"):
        reply = server.user.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_stats")
        assert "has not been read yet" in reply.json()["error"]["message"]
    older = server.good_file()
    assert "older release" in server.user.get(f"/v1/files/{older}/stats").json()["error"]["message"]
    large = read(server, b"4\n", None)
    reply = server.user.get(f"/v1/files/{large}/overlap?with={large}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_supported")
    reply = server.user.get(f"/v1/files/{large}/overlap?with=file-none")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "with")
    assert server.user.get(f"/v1/files/{large}/overlap").status_code == 400


def test_figures_stay_in_their_project(server: Server) -> None:
    other = caller(server, "member", new_project(caller(server, "admin")))
    file_id = read(server, b"{}\n", packed(1))
    assert other.get(f"/v1/files/{file_id}/stats").status_code == 404
    assert other.get(f"/v1/files/{file_id}/overlap?with={file_id}").status_code == 404
    form = {"files": {"file": ("own.jsonl", b"{}")}, "data": {"purpose": "fine-tune"}}
    own = other.post("/v1/files", **form).json()["id"]
    with server.database.write.begin() as session:
        session.add(FileStatsRow(file_id=own, stats=STATS, row_hashes=bytes(8)))
    reply = other.get(f"/v1/files/{own}/overlap?with={file_id}")
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, f"no file {file_id!r}")


@pytest.mark.parametrize("hashes", ["=", "AAA", "A" * 8_000_000])
def test_hashes_that_are_no_base64_are_refused(server: Server, hashes: str) -> None:
    lease = server.worker.claim_reading(file_id := server.upload(b"{}\n"))
    reply = server.worker.read("result", file_id, lease, result={"ok": True}, row_hashes=hashes)
    assert reply.status_code == 400
