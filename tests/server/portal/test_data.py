"""Data sets: list, page of a file, rows, uploads, deletion, rights, hostile texts."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select

from tunesmith_server.models import AuditRow, FileRow

from ...cpu_time import cpu_p95
from ..actors import Server
from ..teams import caller
from ..test_file_stats import packed, read
from .browser import Browser, signed_in
from .hostile import TEXTS
from .page_checks import Document, check_links, check_page

HERE = "/portal/data"
NEW_JOB = "/portal/jobs/new"
CHAT = {
    "messages": [
        {"role": "user", "content": "3 plus 3?"},
        {"role": "assistant", "content": "6"},
    ]
}


def lines_of(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def uploaded(browser: Browser, content: bytes, filename: str = "rows.jsonl", **options: Any) -> str:
    reply = browser.post(f"{HERE}/upload", files={"file": (filename, content)}, **options)
    assert reply.status_code == 303, reply.text[:1000]
    return str(reply.headers["location"]).removeprefix(f"{HERE}/")


def rows_of(browser: Browser, file_id: str, query: str = "") -> Document:
    headers = {"hx-request": "true"}
    reply = browser.get(f"{HERE}/{file_id}/rows{query}", headers=headers)
    assert reply.status_code == 200, reply.text
    return Document(reply.text)


def test_the_list_is_empty_then_shows_what_can_use_and_what_uses_each_file(server: Server) -> None:
    browser = signed_in(server)
    empty = check_page(browser.page(HERE))
    assert "No data sets yet" in empty.all("main")[0].text
    good = server.good_file()
    server.create_job(good)
    bad = server.bad_file()
    waiting = server.upload(b"{}\n", "waiting.jsonl")
    page = check_page(browser.page(HERE))
    check_links(browser, page)
    rows = {row.text.split()[0]: " ".join(row.text.split()[2:]) for row in page.all("tr")[1:]}
    assert rows["rows.jsonl"].startswith("Ready 1 row 90 B messages supervised 0 1 "), rows
    assert rows["bad.jsonl"].startswith("Not usable 1 row 9 B – – 1 0 "), rows  # noqa: RUF001  # dashes
    assert rows["waiting.jsonl"].startswith("Being read – 3 B – – – 0 "), rows  # noqa: RUF001  # dashes
    assert page.with_id("files").attributes["hx-trigger"] == "every 2s"
    found = check_page(browser.page(f"{HERE}?q=BAD.js"))
    links = [item.attributes["href"] for item in found.all("a")]
    assert f"{HERE}/{bad}" in links
    assert f"{HERE}/{good}" not in links
    assert f"{HERE}/{waiting}" not in links
    assert "hx-trigger" not in found.with_id("files").attributes
    assert "No data set matches" in browser.page(f"{HERE}?q=none")
    table = browser.get(f"{HERE}.csv?q={bad}").text.splitlines()
    assert table[0].startswith("id,name,status,rows")
    assert table[1].startswith(f"{bad},bad.jsonl,error,1,")


def test_the_page_of_a_file_has_verdict_problems_uses_and_its_rows(server: Server) -> None:
    browser = signed_in(server)
    good = server.good_file()
    unnamed, job_id = server.create_job(good), server.create_job(good, suffix="night")
    page = check_page(browser.page(f"{HERE}/{good}"))
    check_links(browser, page)
    text = " ".join(page.all("main")[0].text.split())
    assert "Ready Usable for supervised." in text
    assert "Training file with tiny-llama" in text
    links = {item.attributes["href"]: item.text for item in page.all("a")}
    assert (links[f"/portal/jobs/{job_id}"], links[f"/portal/jobs/{unnamed}"]) == ("night", unnamed)
    assert page.with_id("row-list").attributes["hx-get"].startswith(f"{HERE}/{good}/rows")
    bad = server.bad_file()
    problem = check_page(browser.page(f"{HERE}/{bad}")).with_id("verdict")
    assert "1 row has a problem" in problem.text
    assert "Row 1: Not JSON." in " ".join(problem.text.split())
    assert browser.get(f"{HERE}/{bad}/problems.csv").text.splitlines()[1] == ",1,not JSON"
    assert (
        browser.get(f"{HERE}/{good}/uses.csv")
        .text.splitlines()[1]
        .startswith(f"{job_id},night,fine_")
    )
    waiting = server.upload(b"{}\n", "waiting.jsonl")
    verdict = check_page(browser.page(f"{HERE}/{waiting}")).with_id("verdict")
    assert verdict.attributes["hx-trigger"] == "every 1s"
    assert browser.get(f"{HERE}/file-none").status_code == 404


def test_rows_are_conversations_in_every_format(server: Server) -> None:
    tool = {"role": "assistant", "content": None, "tool_calls": [{"id": "call-1"}]}
    rows = [
        {"messages": [*CHAT["messages"], tool], "tools": [{"name": "sum"}]},
        {"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]},
        {"instruction": "c", "input": "", "output": "d"},
        {"conversations": [{"from": "human", "value": "e"}, {"from": "gpt", "value": "f"}]},
        [1, 2],
        {"messages": [{"role": "user", "content": "x" * 4500}] * 30},
    ]
    file_id = server.upload(lines_of(*rows) + b"no JSON\n")
    browser = signed_in(server)
    shown = rows_of(browser, file_id)
    assert [item.text for item in shown.all("p") if item.attributes.get("class") == "role"][:9] == [
        "user", "assistant", "assistant", "tools", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    text = shown.elements[0].text
    assert '"id": "call-1"' in text
    assert "… and 500 more characters" in text
    assert "… and 10 more turns" in text
    assert "Line 7" in text
    assert "Not JSON" in text
    assert "Line 4" in rows_of(browser, file_id, "?line=4").elements[0].text
    assert "Line 3" not in rows_of(browser, file_id, "?line=4").elements[0].text
    found = rows_of(browser, file_id, "?q=HUMAN").elements[0].text
    assert "Line 4" in found
    assert "Line 1" not in found
    assert "No row has “none of it”" in rows_of(browser, file_id, "?q=none+of+it").elements[0].text
    assert (
        "only rows of JSONL" in rows_of(browser, server.upload(b"a,b\n", "x.csv")).elements[0].text
    )
    check_page(browser.page(f"{HERE}/{file_id}/rows"))
    table = browser.get(f"{HERE}/{file_id}/rows.csv?line=2").text.splitlines()
    assert (
        table[1]
        == '2,"{""prompt"":""a"",""completion"":[{""role"":""assistant"",""content"":""b""}]}",'
    )


def test_pages_of_rows_follow_each_other(server: Server) -> None:
    file_id = server.upload(lines_of(*({"text": f"row {number}"} for number in range(1, 26))))
    browser, address, seen = signed_in(server), f"{HERE}/{file_id}/rows", list[str]()
    while address:
        page = check_page(browser.page(address))
        seen += [item.text for item in page.all("p") if item.text.startswith("Line ")]
        address = next(
            (item.attributes["href"] for item in page.all("a") if item.text == "Next rows"), ""
        )
    assert seen == [f"Line {number}" for number in range(1, 26)]


def test_an_upload_is_stored_once_and_read_by_a_worker(server: Server) -> None:
    browser = signed_in(server)
    content = lines_of(CHAT)
    file_id = uploaded(browser, content, "C:\\data\\my rows.jsonl")
    file = server.user.json(f"/v1/files/{file_id}")
    assert (file["filename"], file["status"], file["purpose"]) == (
        "my rows.jsonl", "uploaded", "fine-tune",
    )  # fmt: skip
    assert server.user.get(f"/v1/files/{file_id}/content").content == content
    server.validate(file_id, usable_for=["supervised"], refused={"reinforcement": {
        "problems": [], "num_problems": 1}})  # fmt: skip
    again = uploaded(browser, content, "copy.jsonl")
    assert again == f"{file_id}?known=1"
    assert "nothing was stored again" in browser.page(f"{HERE}/{again}")
    assert uploaded(browser, content, "other.json") != again
    reply = browser.post(
        f"{HERE}/upload",
        files={"file": ("rows.jsonl", content)},
        headers={"sec-fetch-site": "same-origin", "hx-request": "true"},
    )
    assert (reply.status_code, reply.headers["hx-redirect"]) == (204, f"{HERE}/{again}")
    with server.database.read() as session:
        assert list(session.scalars(select(AuditRow.action))).count("POST /files") == 4


def test_uploads_are_refused_before_or_while_they_are_read(server: Server) -> None:
    browser = signed_in(server)
    files = {"file": ("rows.jsonl", lines_of(CHAT))}
    cross = {"sec-fetch-site": "cross-site"}
    assert browser.post(f"{HERE}/upload", files=files, headers=cross).status_code == 403
    key = server.user.headers
    assert Browser(server).get(HERE, headers=key).status_code == 303, "a key opens no page"
    signed_out = Browser(server).post(f"{HERE}/upload", files=files)
    assert signed_out.headers["location"].startswith("/portal/sign-in")
    viewer = signed_in(server, caller(server, "viewer"))
    assert viewer.post(f"{HERE}/upload", files=files).status_code == 403
    assert "Your key may only read" in viewer.page(HERE)
    assert not Document(viewer.page(HERE)).all("noscript")[1:]
    empty = browser.post(f"{HERE}/upload", files={"file": ("rows.jsonl", b"")})
    assert (empty.status_code, "is empty" in empty.text) == (400, True)
    assert "No file was chosen" in browser.post(f"{HERE}/upload", files={"x": ("", b"")}).text
    assert browser.post(f"{HERE}/upload", data={"file": "text"}).status_code == 400
    many = [("file", ("a.jsonl", b"{}")), ("other", ("b.jsonl", b"{}"))]
    assert browser.post(f"{HERE}/upload", files=many).status_code == 400
    large = {"content-length": str(10**12), "sec-fetch-site": "same-origin"}
    refused = browser.post(f"{HERE}/upload", content=b"x", headers=large)
    assert refused.status_code == 413
    assert server.user.json("/v1/files")["data"] == []


def test_a_file_is_deleted_after_one_question_unless_a_job_needs_it(server: Server) -> None:
    browser = signed_in(server)
    file_id = server.good_file()
    job_id = server.create_job(file_id)
    dialog = check_page(browser.page(f"{HERE}/{file_id}")).with_id("delete-file")
    assert "Delete rows.jsonl?" in dialog.text
    refused = browser.post(f"{HERE}/{file_id}/delete")
    assert (refused.status_code, job_id in refused.text) == (409, True)
    viewer = signed_in(server, caller(server, "viewer"))
    assert viewer.post(f"{HERE}/{file_id}/delete").status_code == 403
    assert "delete-file" not in viewer.page(f"{HERE}/{file_id}")
    server.ask(job_id, "cancel")
    assert browser.post(f"{HERE}/{file_id}/delete").headers["location"] == HERE
    assert browser.get(f"{HERE}/{file_id}").status_code == 404
    with server.database.read() as session:
        assert "DELETE /files/{file_id}" in list(session.scalars(select(AuditRow.action)))


def test_reads_of_rows_are_in_the_audit_log_and_need_the_storage(server: Server) -> None:
    browser = signed_in(server)
    file_id = server.good_file()
    rows_of(browser, file_id)
    content = browser.get(f"{HERE}/{file_id}/content")
    assert content.headers["content-disposition"].startswith("attachment")
    assert "default-src 'none'" in content.headers["content-security-policy"]
    for chosen in (file_id, "", "file-none"):  # in the form of a new job
        browser.page(f"{HERE}/first?training_file={chosen}")
    with server.database.read() as session:
        entries = session.execute(select(AuditRow.action, AuditRow.target)).all()
    actions = [action for action, _ in entries]
    reads = [target for action, target in entries if action == "GET /files/{file_id}/rows"]
    assert reads == [{"file_id": file_id}] * 2
    assert actions.count("GET /files/{file_id}/content") == 1
    server.storage.delete([server.user.json(f"/v1/files/{file_id}")["sha256"]])
    assert "lost the content" in rows_of(browser, file_id).elements[0].text
    assert browser.get(f"{HERE}/{file_id}").status_code == 200


def test_hostile_names_and_rows_are_inert(server: Server) -> None:
    browser = signed_in(server)
    names = [item.replace("\0", "")[:200] for item in TEXTS]
    ids = [server.upload(b"{}\n", name or "-") for name in names]
    rows = [
        {"messages": [{"role": item[:1000], "content": item[:90_000]}], item[:100]: "x"}
        for item in TEXTS
    ]
    file_id = server.upload(lines_of(*rows))
    for problem in TEXTS:
        bad = server.upload(b"no\n", "bad.jsonl")
        found = [{"row": 1, "message": problem[:1000] or "-"}]
        server.validate(bad, ok=False, format=None, problems=found, num_problems=1)
        check_page(browser.page(f"{HERE}/{bad}"))
    for path in (HERE, *(f"{HERE}/{item}" for item in ids)):
        page = check_page(browser.page(path))
        assert not page.all("iframe", "img", "base", "style", "object", "template")
    for line in range(1, 61, 10):
        page = check_page(browser.page(f"{HERE}/{file_id}/rows?line={line}"))
        assert not page.all("iframe", "img", "base", "style", "object", "template")
        check_page(browser.page(f"{HERE}?q={line}"))
    for text in TEXTS:
        assert browser.get(HERE, params={"q": text[:2000]}).status_code == 200
        reply = browser.get(f"{HERE}/{file_id}/rows", params={"q": text[:2000], "line": text[:90]})
        assert reply.status_code == 200
    table = browser.get(f"{HERE}.csv").text
    assert "\n=" not in table
    assert ",=" not in table


def test_lengths_duplicates_and_overlap_of_a_file(server: Server) -> None:
    browser = signed_in(server)
    one, two = (read(server, content, packed(7, 8)) for content in (b"1\n", b"2\n"))
    page = check_page(browser.page(f"{HERE}/{one}"))
    assert len(page.all("rect")) == 2
    text = " ".join(page.with_id("verdict").text.split())
    assert "Median2095 % up to40 Longest50In total100" in text
    assert "1 of 4 rows is equal to an earlier row (25 %)" in text
    assert [item.attributes["value"] for item in page.all("option")] == ["", two]
    assert browser.get(f"{HERE}/{one}/lengths.csv").text.splitlines()[1:] == ["20,3", "50,1"]
    found = check_page(browser.page(f"{HERE}/{one}/overlap?with={two}"))
    assert "2 rows of this file (100 %) are in the other file too." in found.with_id("overlap").text
    check_links(browser, found)
    older = server.good_file()
    assert "Not known: an older release" in browser.page(f"{HERE}/{older}")
    assert "has no statistics" in browser.page(f"{HERE}/{one}/overlap?with={older}")
    assert "No file &#39;x&#39;" in browser.page(f"{HERE}/{one}/overlap?with=x")


@pytest.mark.timing
def test_pages_with_ten_thousand_files_cost_little(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    with server.user_session() as session, session.begin():
        row = session.get_one(FileRow, file_id)
        values = {name: getattr(row, name) for name, _ in row.__mapper__.columns.items()}
        values |= {"request_key": None}
        session.execute(
            insert(FileRow),
            [
                values | {"id": f"file-{number:024x}", "created_at": number}
                for number in range(9999)
            ],
        )
    browser = signed_in(server)
    for path in (HERE, f"{HERE}?q=rows", f"{HERE}?q=nothing", f"{HERE}/{file_id}", NEW_JOB):
        browser.page(path)
        assert cpu_p95([partial(browser.page, path)] * 20, 0.06) <= 0.06, path
