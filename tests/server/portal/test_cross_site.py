"""Requests from other sites: every changing route of the portal, with every pair of headers that
browsers send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

from sqlalchemy import Row, select

from tunesmith_server.core.database import Base

from ..actors import Server
from .browser import SAME_SITE, Browser, signed_in
from .page_checks import check_page
from .registered import registered

SITES = (None, "same-origin", "none", "same-site", "cross-site", "")
ORIGINS = (
    None, "http://testserver", "http://testserver:81", "https://testserver", "null",
    "http://evil.example", "http://testserver.evil.example", "",
)  # fmt: skip
REFUSED = "page of another site sent this request"
READ_ONLY = "may only read"


def is_own(site: str | None, origin: str | None) -> bool:
    """Return True if one of our own pages, or nobody's page, sends these headers."""
    if site is not None:
        return site in ("same-origin", "none")
    return origin == "http://testserver"


def changing() -> list[str]:
    pages = [page for page in registered() if page.method != "GET"]
    return [re.sub(r"\{[^}]*\}", "x", page.path) for page in pages]


def cases() -> Iterator[tuple[str, dict[str, str], bool]]:
    """Yield path, headers, and whether the request is our own."""
    for path, site, origin in product(changing(), SITES, ORIGINS):
        headers = {"sec-fetch-site": site, "origin": origin}
        sent = {name: value for name, value in headers.items() if value is not None}
        yield path, sent, is_own(site, origin)


def display(server: Server) -> Browser:
    """Return a browser whose session may only read: a request that passes the check of its origin
    then fails, and changes nothing."""
    made = server.user.post("/v1/sessions", json={"name": "wall"}).json()
    browser = Browser(server)
    link = made["path"].partition("link=")[2]
    assert browser.post("/portal/sign-in", data={"link": link}).status_code == 303
    return browser


def test_only_our_own_pages_change_something(server: Server) -> None:
    browser, paths = display(server), changing()
    assert len(paths) >= 12
    public = {page.path for page in registered() if page.is_public}
    secret = dict(browser._client.cookies)
    for path, headers, own in cases():
        if path in public and own:
            continue  # these change the session: see the next test
        reply = browser.post(path, headers=headers)
        expected = READ_ONLY if own else REFUSED
        assert (reply.status_code, expected in reply.text) == (403, True), (path, headers)
    assert dict(browser._client.cookies) == secret
    assert browser.get("/portal/jobs").status_code == 200


def test_our_own_pages_sign_in_and_out_and_set_the_theme(server: Server) -> None:
    public = [page for page in registered() if page.is_public and page.method != "GET"]
    for path, headers, own in cases():
        if own and path in {page.path for page in public}:
            browser = signed_in(server)
            reply = browser.post(path, headers=headers, data={"theme": "dark", "key": "wrong"})
            assert reply.status_code == (401 if path == "/portal/sign-in" else 303), path
            server.app.state.portal_failed_sign_ins._failures.clear()


def test_reading_pages_changes_no_row(server: Server) -> None:
    """Pages that send the content of files are in the audit log, and only there."""
    browser, job_id = signed_in(server), server.create_job(server.good_file())
    before = contents(server)
    for page in registered():
        if page.method == "GET":
            path = page.path.replace("{job_id}", job_id)
            assert browser.get(re.sub(r"\{[^}]*\}", "x", path)).status_code < 500, path
            assert browser._client.request("HEAD", path).status_code < 500, path
    after = contents(server)
    assert {name for name in after if after[name] != before[name]} <= {"audit_log"}
    assert before["sessions"]


def test_other_methods_are_refused(server: Server) -> None:
    browser = signed_in(server)
    for page in registered():
        for method in ("PUT", "PATCH", "DELETE"):
            reply = browser._client.request(method, re.sub(r"\{[^}]*\}", "x", page.path))
            assert reply.status_code == 405, (method, page.path)


def test_a_page_that_only_shows_refuses_a_form_with_an_error_page(server: Server) -> None:
    browser = signed_in(server)
    for path, allowed in (("/portal/jobs", "GET, HEAD"), ("/portal/nothing", "GET, HEAD")):
        reply = browser.post(path, data={"name": "x"})
        assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
        page = check_page(reply.text)
        assert page.all("h1")[0].text == "The page does not accept this request"
        assert f"The page {path} does not accept a POST request." in page.all("main")[0].text
        assert "/portal/models" in [link.attributes["href"] for link in page.all("a")]
    sign_in = browser._client.put("/portal/sign-in", headers=SAME_SITE)
    assert sign_in.headers["allow"] == "GET, HEAD, POST"
    part = browser.post("/portal/jobs", headers={**SAME_SITE, "hx-request": "true"})
    assert part.text.startswith('<div class="failed is-bad" role="alert">')
    stranger = Browser(server).post("/portal/jobs")
    assert (stranger.status_code, stranger.headers["allow"]) == (405, "GET, HEAD")


def contents(server: Server) -> dict[str, list[Row[Any]]]:
    """Return all rows of each table."""
    with server.database.read() as session:
        return {
            table.name: sorted(session.execute(select(table)), key=repr)
            for table in Base.metadata.sorted_tables
        }
