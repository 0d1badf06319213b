"""`client.files.rows` and `uses`, and their commands."""

from __future__ import annotations

import json
from typing import Any

import httpx

from .conftest import Tunesmith
from .fakes import Script, client_of, page
from .local_server import LocalServer

PATH = "/v1/files/file-1"


def row(line: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"{line}-{line * 9}", "object": "file.row", "line": line, **fields}


def test_the_sdk_reads_on_behind_a_page_without_rows() -> None:
    empty = {**page(has_more=True), "last_id": "7-63"}
    script = Script(
        httpx.Response(200, json=empty), httpx.Response(200, json=page(row(9, data={"t": "x"})))
    )
    with client_of(script) as client:
        found = list(client.files.rows("file-1", q="x", limit=3))
    assert [(item.line, item.data) for item in found] == [(9, {"t": "x"})]
    queries = [dict(request.url.params) for request in script.requests]
    assert queries == [{"q": "x", "limit": "3"}, {"q": "x", "limit": "3", "after": "7-63"}]


def test_the_command_shows_rows_and_their_problems(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    bad = row(4, data=None, text="\x1b[2J[bold]", problem="not JSON: expected value")
    answer = page(row(3, data={"t": "Ü\x9b" + "y" * 400}), bad, has_more=True)
    server.answers[f"GET {PATH}/rows"] = answer
    done = tunesmith("files", "rows", "file-1", "--offset", "2", "--text", "y")
    assert done.exit_code == 0, done.output
    assert server.seen[0].target == f"{PATH}/rows?offset=2&q=y&limit=20"
    shown = "".join(done.stdout.split())
    assert '{"t":"Ü\\x9b' + "y" * 200 in shown
    assert "notJSON:expectedvalue:\\x1b[2J[bold]" in shown
    assert not {"\x1b", "\x9b"} & set(done.stdout)
    done = tunesmith("files", "rows", "file-1", "--json")
    assert json.loads(done.stdout) == answer


def test_the_command_searches_files_and_counts_their_uses(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    file = {
        "id": "file-1", "object": "file", "bytes": 9, "created_at": 1_700_000_000,
        "filename": "rows.jsonl", "purpose": "fine-tune", "status": "processed", "num_uses": 37,
    }  # fmt: skip
    server.answers["GET /v1/files"] = page(file)
    shown = tunesmith("files", "list", "--text", "rows").stdout
    assert server.seen[0].target == "/v1/files?limit=20&q=rows&include=num_uses"
    assert "37" in shown.split()


def test_the_commands_show_lengths_and_equal_rows(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    lengths = {"total": 90, "min": 11, "median": 22, "p95": 33, "max": 44, "histogram": []}
    repeated = [{"row": 5, "count": 3, "next": 8}]
    stats = {
        "object": "file.stats", "rows": 4, "lengths": lengths, "duplicates": 2,
        "repeated": repeated,
    }  # fmt: skip
    server.answers[f"GET {PATH}/stats"] = stats
    shown = tunesmith("files", "stats", "file-1").stdout
    assert all(word in shown.split() for word in ("90", "11", "22", "33", "44", "2"))
    assert "row 5: 3 times" in shown
    assert json.loads(tunesmith("files", "stats", "file-1", "--json").stdout) == stats
    overlap = {
        "object": "file.overlap", "file_id": "file-1", "other_id": "file-2", "rows": 12,
        "share": 0.25, "pairs": [{"row": 7, "other": 9}],
    }  # fmt: skip
    server.answers[f"GET {PATH}/overlap"] = overlap
    shown = tunesmith("files", "overlap", "file-1", "file-2").stdout
    assert server.seen[-1].target == f"{PATH}/overlap?with=file-2"
    assert "12 rows (25.0 %) of file-1 are in file-2 too" in " ".join(shown.split())
    assert ["7", "9"] in [line.split() for line in shown.splitlines()]


def test_the_command_lists_uses(tunesmith: Tunesmith, server: LocalServer) -> None:
    use = {
        "id": "ftjob-1", "object": "file.use", "kind": "fine_tuning.job", "role": "training_file",
        "created_at": 1_700_000_000, "status": "running", "model": "tiny",
        "name": "night",
    }  # fmt: skip
    server.answers[f"GET {PATH}/uses"] = page(use)
    shown = tunesmith("files", "uses", "file-1").stdout
    assert all(word in shown for word in ("ftjob-1", "training file", "running", "tiny", "night"))
