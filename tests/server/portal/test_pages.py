"""Pages: structure, links, hostile names, the theme, static files and vendored packages."""

from __future__ import annotations

import gzip
import hashlib
import re
import time
import tomllib
from importlib.resources import files
from pathlib import Path

from sqlalchemy import update

from tunesmith_server.models import JobRow
from tunesmith_server.portal import assets, tables, text, view
from tunesmith_server.services import keys, sessions

from ..actors import Server
from ..teams import caller
from .browser import signed_in
from .hostile import TEXTS
from .page_checks import Document, check_links, check_page

STATIC = files("tunesmith_server.portal") / "static"
TEMPLATES = Path(str(files("tunesmith_server.portal") / "templates"))
TO_COME = ("/portal/jobs/",)


def test_every_page_is_well_formed_and_its_links_answer(server: Server) -> None:
    browser = signed_in(server)
    empty = check_page(browser.page("/portal/jobs"))
    assert "No jobs yet" in empty.all("main")[0].text
    job_id = server.create_job(server.good_file(), suffix="first")
    for path in ("/portal/jobs", "/portal/settings", "/portal/jobs?q=none&state=failed"):
        check_links(browser, check_page(browser.page(path)), TO_COME)
    rows = check_page(browser.page("/portal/jobs?q=firs&state=waiting")).all("tr")
    assert [row.attributes.get("data-job") for row in rows] == [None, job_id]
    missing = browser.get("/portal/nothing")
    assert missing.status_code == 404
    check_page(missing.text)


def test_hostile_names_are_inert(server: Server) -> None:
    assert len(TEXTS) == 60
    browser = signed_in(server)
    for hostile in TEXTS:
        searched = hostile[:2000].replace("\0", "")
        shown = browser.get("/portal/jobs", params={"q": hostile[:2000], "model": hostile[:2000]})
        assert shown.status_code == 200, hostile[:80]
        document = check_page(shown.text)
        search = next(item for item in document.all("input") if item.attributes["name"] == "q")
        assert search.attributes["value"] == text.visible(searched.strip()[:200])


def test_hostile_texts_from_the_database_are_inert(server: Server) -> None:
    """Names of jobs, keys, screens and browsers, and messages; one has 100 kB."""
    file_id = server.good_file()
    job_id = server.create_job(file_id, suffix="first")
    texts = [item.replace("\0", "") for item in TEXTS]
    lead = caller(server, "lead")
    browser = signed_in(server, lead)
    with server.user_session() as session, session.begin():
        row = session.get_one(JobRow, job_id)
        values = {name: getattr(row, name) for name, _ in row.__mapper__.columns.items()}
        for number, hostile in enumerate(texts):
            error = {"category": "user", "code": "recipe_invalid", "message": hostile}
            copied = {"id": f"ftjob-{number:024x}", "suffix": hostile[:64], "state": "failed"}
            session.add(JobRow(**values | copied | {"error": error, "finished_at": time.time()}))
        key_id = keys.authenticate(session, lead.headers["authorization"]).key_id
        for hostile in texts:
            keys.create(session, hostile[:100], role="viewer")
            sessions.create(session, key_id, user_agent=hostile)
            sessions.create(session, key_id, "display", name=hostile[:120])
    for path in ("/portal", "/portal/jobs?after=", "/portal/screen", "/portal/settings"):
        document = check_page(browser.page(path))
        assert not document.all("iframe", "img", "base", "style", "object", "template")
        assert not text.HIDDEN.search("".join(item.text for item in document.all("main")))
    found = Document(browser.get("/portal/find", headers={"hx-request": "true"}).text)
    assert not found.all("script", "img", "iframe")


def test_hidden_characters_become_symbols() -> None:
    assert text.visible("a\u202eb\x00\x1b\ud800\tc\n") == "a[U+202E]b␀␛\ufffd\tc\n"
    assert text.clipped("x" * 9, 4) == "xxx…"


def test_messages_become_sentences_and_names_stay() -> None:
    expected = {
        "the loss is not finite": "The loss is not finite.",
        "use fewer rows.": "Use fewer rows.",
        "cut short…": "Cut short…",
        "recipe.eval_steps=350: saves 22%": "recipe.eval_steps=350: saves 22%.",
        "rows.jsonl, row 4: no answer": "rows.jsonl, row 4: no answer.",
    }
    assert {message: text.sentence(message) for message in expected} == expected


def test_a_theme_is_remembered(server: Server) -> None:
    browser = signed_in(server)
    back = {"sec-fetch-site": "same-origin", "referer": "http://testserver/portal/jobs?q=a"}
    chosen = browser.post("/portal/theme", data={"theme": "dark"}, headers=back)
    assert chosen.headers["location"] == "/portal/jobs?q=a"
    unreadable = back | {"referer": "http://[x/portal"}
    chosen = browser.post("/portal/theme", data={"theme": "dark"}, headers=unreadable)
    assert chosen.headers["location"] == "/portal"
    assert Document(browser.page("/portal/jobs")).all("html")[0].attributes["data-theme"] == "dark"


def test_a_lead_revokes_a_key_and_a_member_cannot(server: Server) -> None:
    browser = signed_in(server, caller(server, "lead"))
    other = server.new_user("other")
    page = check_page(browser.page("/portal/settings"))
    [button] = [
        item
        for item in page.all("button")
        if item.text == "Revoke"
        and "popovertarget" in item.attributes
        and item.attributes["aria-label"] == "Revoke other"
    ]
    dialog = page.with_id(button.attributes["popovertarget"])
    assert "Revoke the key other?" in dialog.text
    key_id = button.attributes["popovertarget"].removeprefix("revoke-")
    action = f"/portal/settings/keys/{key_id}/revoke"
    assert action in [item.attributes["action"] for item in page.all("form")]
    member = caller(server, "member")
    assert signed_in(server, member).post(action).status_code == 403
    assert browser.post(action).status_code == 303
    assert other.get("/v1/files").status_code == 401


def test_static_files_are_kept_for_a_year_and_compressed(server: Server) -> None:
    browser = signed_in(server)
    for name in assets.names():
        reply = browser.get(assets.url(name))
        assert reply.status_code == 200
        assert "immutable" in reply.headers["cache-control"]
        assert reply.content == (STATIC / name).read_bytes()
    assert browser.get("/portal/static/000000000000/app.css").status_code == 404
    scripts = {
        name: (STATIC / name).read_bytes() for name in assets.names() if name.endswith(".js")
    }
    own = {name: content for name, content in scripts.items() if "vendor" not in name}
    assert sum(len(gzip.compress(content)) for content in own.values()) <= 40_000
    assert sum(len(gzip.compress(content)) for content in scripts.values()) <= 90_000
    assert sum(content.count(b"\n") for content in own.values()) <= 1500


def test_vendored_files_are_the_published_ones() -> None:
    table = tomllib.loads((STATIC / "vendor.toml").read_text())["files"]
    for item in table:
        assert hashlib.sha256((STATIC / item["file"]).read_bytes()).hexdigest() == item["sha256"]
        assert (STATIC / item["licence_file"]).read_text().strip()
        assert all(item[name] for name in ("package", "version", "licence"))
    vendored = {name for name in assets.names() if name.startswith("vendor/")}
    listed = {item["file"] for item in table} | {item["licence_file"] for item in table}
    assert vendored == listed


def test_numbers_times_and_sizes() -> None:
    assert [view.number(item) for item in (None, 0.0, 0.000012, 1.23456, 999.951, 12345.6)] == [
        view.UNKNOWN, "0", "1.2e-05", "1.235", "1,000", "12,346",
    ]  # fmt: skip
    assert [view.duration(item) for item in (0.5, 59.96, 125, 7500, 90000)] == [
        "500 ms", "1 min 00 s", "2 min 05 s", "2 h 05 min", "1 d 1 h",
    ]  # fmt: skip
    assert [view.rough(item) for item in (-3, 0.2, 41.7, 50, 51, 89, 863.4, 3571, 7530)] == [
        "10 s", "10 s", "50 s", "50 s", "1 min", "1 min", "14 min", "1 h 00 min", "2 h 06 min",
    ]  # fmt: skip
    assert [view.size(item) for item in (None, 0, 1536, 3 * 1024**3)] == [
        view.UNKNOWN, "0 B", "1.5 KiB", "3.0 GiB",
    ]  # fmt: skip
    assert (view.percent(0.999), view.percent(1.0), view.percent(None)) == (
        "99 %", "100 %", view.UNKNOWN,
    )  # fmt: skip
    assert view.sparkline([1.0, None, 2.0, 3.0]) == "m1 22m62.7-10 31.3-10"
    assert view.sparkline([1.0]) == ""
    assert view.ago(0, 200) == "3 min ago"
    firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
    assert (view.browser(firefox), view.browser("curl/8"), view.browser("")) == (
        "Firefox on Linux", "curl/8", "",
    )  # fmt: skip


def test_a_job_whose_documents_cannot_be_read_is_listed(server: Server) -> None:
    job_id = server.create_job(server.good_file(), suffix="damaged")
    with server.user_session() as session, session.begin():
        values = {"hyperparameters": {"n_epochs": "?"}, "method": None}
        session.execute(update(JobRow).where(JobRow.id == job_id).values(values))
    page = check_page(signed_in(server).page("/portal/jobs"))
    assert job_id in [row.attributes.get("data-job") for row in page.all("tr")]


def test_controls_of_pages_that_do_not_exist_are_hidden(server: Server) -> None:
    server.create_job(server.good_file(), suffix="first")
    browser = signed_in(server)
    controls = ("data-compare", 'name="jobs"', 'href="/portal/jobs/new"')
    server.app.state.portal_paths -= {"/portal/compare", "/portal/jobs/new"}
    assert not [item for item in controls if item in browser.page("/portal/jobs")]
    server.app.state.portal_paths |= {"/portal/compare", "/portal/jobs/new"}
    page = browser.page("/portal/jobs")
    assert [item for item in controls if item in page] == list(controls)
    check_page(page)


def test_jobs_files_and_pages_are_found_by_a_part_of_their_names(server: Server) -> None:
    file_id = server.good_file()
    job_id = server.create_job(file_id, suffix="settled")
    named = server.upload(b'{"messages": []}\n', filename="sett.jsonl")
    browser = signed_in(server)
    part = {"hx-request": "true"}
    found = Document(browser.get("/portal/find?q=sett", headers=part).text)
    addresses = [item.attributes["href"] for item in found.all("a")]
    assert addresses == [
        f"/portal/jobs/{job_id}", f"/portal/data/{named}", "/portal/settings",
    ]  # fmt: skip
    none = browser.get("/portal/find", params={"q": "<b>"}, headers=part).text
    assert "Nothing has “&lt;b&gt;” in its name." in none
    assert browser.get("/portal/find?q=a+b").headers["location"] == "/portal/jobs?q=a+b"


def test_actions_are_found_by_callers_who_may_use_them(server: Server) -> None:
    part = {"hx-request": "true"}
    viewer = signed_in(server, caller(server, "viewer"))
    for browser, found in ((signed_in(server), ["/portal/data#file"]), (viewer, [])):
        document = Document(browser.get("/portal/find?q=upload", headers=part).text)
        assert [item.attributes["href"] for item in document.all("a")] == found
    document = Document(viewer.get("/portal/find", headers=part).text)
    for item in document.all("a"):
        assert viewer.get(item.attributes["href"] or "").status_code == 200


def test_a_table_is_inert_in_a_spreadsheet() -> None:
    table = tables.as_csv("a/b", ["=1", "name"], [["@x", 2], [None, "+3"]])
    assert bytes(table.body) == b"'=1,name\r\n'@x,2\r\n,'+3\r\n"
    assert table.headers["content-disposition"] == 'attachment; filename="a_b.csv"'


def test_a_new_input_replaces_the_request_of_an_earlier_one() -> None:
    """By default, htmx drops all but the first input that arrives during a request."""
    triggers = [
        (path.name, tag)
        for path in sorted(TEMPLATES.rglob("*.html"))
        for tag in re.findall(r'hx-trigger="[^"]*\b(?:input|change)\b[^>]*', path.read_text())
    ]
    assert len(triggers) >= 10
    assert [(name, tag) for name, tag in triggers if 'hx-sync="replace"' not in tag] == []
