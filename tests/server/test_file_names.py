"""Names chosen by callers reach neither the file system nor a header unchanged."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from .actors import Server

TRAVERSAL = [
    "../../etc/passwd",
    "/etc/passwd",
    "..\\..\\windows\\system32",
    "C:\\secrets.jsonl",
    "....//....//etc/passwd",
    "..",
    ".",
    "a/..",
    "%2e%2e%2fetc%2fpasswd",
    "..%c0%afetc",
    "file:///etc/passwd",
    "name\r\nset-cookie: a=b",
    "tab\tand\x1b[31mred",
    'quote".jsonl',
    "NUL\x00.jsonl",
    "\u202egnp.exe",
    "ümläut \u6587.jsonl",
    "x" * 400,
    " ",
]


def test_a_filename_is_only_ever_shown(server: Server, tmp_path: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if "blobs" not in path.parts}
    for name in TRAVERSAL:
        file_id = server.upload(b"content\n", name)
        shown = server.user.json(f"/v1/files/{file_id}")["filename"]
        assert shown.strip(". "), name
        assert len(shown) <= 255
        assert not set(shown) & set("/\\\r\n\t\0\x1b\u202e"), name
        reply = server.user.get(f"/v1/files/{file_id}/content")
        assert reply.content == b"content\n"
        assert reply.headers["content-disposition"].isascii()
        assert reply.headers["content-disposition"].count('"') == 2
        assert "set-cookie" not in reply.headers
    after = {path for path in tmp_path.rglob("*") if "blobs" not in path.parts}
    assert {path.name for path in after - before} <= {"tunesmith.db-wal", "tunesmith.db-shm"}


@pytest.mark.parametrize(
    "route",
    [
        "/v1/files/{}",
        "/v1/files/{}/content",
        "/v1/fine_tuning/jobs/{}",
        "/v1/fine_tuning/jobs/{}/events",
        "/v1/models/{}",
        "/v1/adapters/{}",
        "/v1/adapters/{}/content",
        "/v1/adapters/adp-1/content/{}",
    ],
)
def test_an_id_in_a_path_is_only_ever_looked_up(server: Server, route: str) -> None:
    for path in TRAVERSAL:
        reply = server.user.get(route.format(quote(path, safe="").replace(".", "%2e")))
        # PostgreSQL refuses queries with a NUL.
        refused = "\0" in path or len(path) > 64  # no id: a NUL, or longer than any id
        assert reply.status_code == 404 or (reply.status_code == 400 and refused), path
        assert "root:" not in reply.text


def test_a_file_of_an_adapter_has_a_plain_name(server: Server) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    stored = server.worker.store(claim, {"a": b"x"})[0]
    for name in TRAVERSAL:
        outcome = {"state": "succeeded", "files": [{**stored, "name": name}]}
        assert server.worker.report_reply(claim, outcome=outcome).status_code == 400, name
    assert server.job(claim["job_id"])["state"] == "running"
