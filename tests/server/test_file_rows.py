"""Rows of a file by page, and the jobs and evaluations that use a file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunesmith_server.services.data import file_rows

from .actors import Server


def lines_of(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def listed(server: Server, file_id: str, **params: Any) -> list[Any]:
    """All rows, with the cursor `last_id` after each page."""
    rows, after = list[Any](), dict[str, str]()
    for _ in range(200):
        page = server.user.json(f"/v1/files/{file_id}/rows", params={**params, **after})
        assert len(page["data"]) <= params.get("limit", 20)
        rows += page["data"]
        if not page["has_more"]:
            return rows
        assert page["last_id"] != after.get("after"), "a page must move on"
        after = {"after": page["last_id"]}
    raise AssertionError("the pages do not end")


def test_rows_have_the_line_numbers_of_the_file(server: Server) -> None:
    content = b'\xef\xbb\xbf{"text": "first"}\r\n\n{"text": [1.5, null]}\nno JSON\n\xff\n"last"'
    page = server.user.json(f"/v1/files/{server.upload(content)}/rows")
    assert (page["object"], page["has_more"]) == ("list", False)
    one, three, four, five, six = page["data"]
    assert [row["line"] for row in page["data"]] == [1, 3, 4, 5, 6]
    assert [one["data"], three["data"]] == [{"text": "first"}, {"text": [1.5, None]}]
    assert (four["data"], four["text"], four["problem"][:9]) == (None, "no JSON", "not JSON:")
    assert (five["text"], six["data"]) == ("\ufffd", "last")


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_pages_join_wherever_they_end(
    server: Server, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    """The bounds are so small that a page ends inside a long row, and while it skips."""
    texts = ["a" * (n % 7) for n in range(30)]
    texts[11] = "b" * 500
    content = lines_of(*({"t": text} for text in texts)).removesuffix(b"\n") + end
    file_id = server.upload(content)
    monkeypatch.setattr(file_rows, "MAX_ROW_BYTES", 40)
    monkeypatch.setattr(file_rows, "MAX_READ_BYTES", 64)
    monkeypatch.setattr(file_rows, "MAX_SKIP_BYTES", 50)
    for limit in (1, 4, 100):
        for offset in (0, 1, 10, 11, 12, 29, 30, 99):
            rows = listed(server, file_id, limit=limit, offset=offset)
            assert [row["line"] for row in rows] == [*range(offset + 1, 31)], (limit, offset)
            for row in rows:
                whole = {"t": texts[row["line"] - 1]}
                assert row["data"] == (None if row["line"] == 12 else whole)
                assert (row["problem"] is not None) == (row["line"] == 12)
    assert [row["line"] for row in listed(server, file_id, q="bbb")] == [12]


def test_a_text_is_searched_in_keys_and_strings(server: Server) -> None:
    rows = [{"Frage": 'Wo ist "Zürich"?'}, {"messages": [{"content": "x\ny"}]}, {"n": 17}]
    file_id = server.upload(lines_of(*rows))
    for text, line in (('"ZÜRICH"', 1), ("frage", 1), ("X\nY", 2), ("content", 2)):
        assert [row["line"] for row in listed(server, file_id, q=text)] == [line], text
    for text in ("ny", "u00fc", '": ', "17"):
        assert listed(server, file_id, q=text) == [], text


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", b"a,b\n1,2\n"), ("a.parquet", b"PAR1"), ("a.json", b' [{"text": "a"}]')],
)
def test_other_formats_are_refused(server: Server, name: str, content: bytes) -> None:
    reply = server.user.get(f"/v1/files/{server.upload(content, name)}/rows")
    assert reply.status_code == 400
    assert "only rows of JSONL files" in reply.json()["error"]["message"]


@pytest.mark.parametrize("after", ["x", "1", "-1-2", "3-2", "0-99999", f"1-{'9' * 30}"])
def test_a_position_outside_the_file_is_refused(server: Server, after: str) -> None:
    path = f"/v1/files/{server.upload(lines_of(1, 2))}/rows"
    reply = server.user.get(path, params={"after": after})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "after")


def test_lost_content_is_said(server: Server) -> None:
    file_id = server.upload(lines_of({"text": "a"}))
    server.storage.delete([server.user.json(f"/v1/files/{file_id}")["sha256"]])
    reply = server.user.get(f"/v1/files/{file_id}/rows")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "content_missing")
    assert server.user.get("/v1/files/file-0/rows").status_code == 404


def test_a_file_names_its_jobs_and_evaluations(server: Server) -> None:
    file_id, other = server.good_file(), server.good_file(lines_of({"text": "other"}))
    assert server.user.json(f"/v1/files/{file_id}/uses")["data"] == []
    first = server.create_job(file_id, validation_file=other)
    second = server.create_job(other, validation_file=file_id)
    both = server.create_job(file_id, validation_file=file_id, suffix="both")
    body = {"name": "second run"}
    assert server.user.send("PATCH", f"/v1/fine_tuning/jobs/{second}", json=body).is_success
    server.create_job(other)
    body = {"model": "tiny-llama", "file": file_id}
    reply = server.user.post("/v1/evaluations", json=body)
    assert reply.status_code == 200, reply.text
    path = f"/v1/files/{file_id}/uses"
    uses = server.user.json(path)["data"]
    assert [(use["id"], use["kind"], use["role"], use["status"]) for use in uses] == [
        (reply.json()["id"], "evaluation", "file", "queued"),
        (both, "fine_tuning.job", "training_file", "queued"),
        (second, "fine_tuning.job", "validation_file", "queued"),
        (first, "fine_tuning.job", "training_file", "queued"),
    ]
    assert {use["model"] for use in uses} == {"tiny-llama"}
    assert [use["name"] for use in uses] == [None, "both", "second run", None]
    rest = server.user.json(path, params={"after": uses[1]["id"], "limit": 1})
    assert ([use["id"] for use in rest["data"]], rest["has_more"]) == ([second], True)
    assert server.user.get(path, params={"after": "ftjob-0"}).status_code == 400


def test_files_are_searched_and_their_uses_counted(server: Server) -> None:
    first, second = server.good_file(), server.upload(b"{}\n", "Sums_100%.jsonl")
    third = server.good_file()
    server.create_job(first, validation_file=first)  # one use
    server.create_job(first)
    server.create_job(third, validation_file=first)
    body = {"model": "tiny-llama", "file": first}
    assert server.user.post("/v1/evaluations", json=body).status_code == 200

    def ids(**params: Any) -> list[str]:
        return [file["id"] for file in server.user.json("/v1/files", params=params)["data"]]

    assert ids(q="sums_100%") == ids(q=second[3:]) == [second]
    assert ids(q="%%") == ids(q="rows_jsonl") == []
    assert server.user.json("/v1/files")["data"][0]["num_uses"] is None
    listed = server.user.json("/v1/files", params={"include": "num_uses"})["data"]
    assert {file["id"]: file["num_uses"] for file in listed} == {first: 4, second: 0, third: 1}
    assert server.user.get("/v1/files", params={"include": "other"}).status_code == 400
