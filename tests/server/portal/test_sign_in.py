"""Sign-in, the life of a session, requests from other sites, and limits of failed sign-ins."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from sqlalchemy import select, update

from tunesmith_server.identity import policy
from tunesmith_server.models import SessionRow
from tunesmith_server.portal import security
from tunesmith_server.portal.pages import all_pages
from tunesmith_server.services import keys, sessions

from ..actors import Server
from .browser import SAME_SITE, Browser, signed_in
from .page_checks import check_page

JOBS = "/portal/jobs"


def test_the_root_leads_through_the_sign_in_back_to_the_page(server: Server) -> None:
    browser = Browser(server)
    assert browser.get("/").headers["location"] == "/portal"
    asked = browser.get(f"{JOBS}?state=failed")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/portal/sign-in?to=%2Fportal%2Fjobs%3Fstate%3Dfailed"
    check_page(browser.page(asked.headers["location"]))
    assert browser.sign_in(server.user, f"{JOBS}?state=failed").headers["location"] == (
        f"{JOBS}?state=failed"
    )
    assert "<h1>Jobs</h1>" in browser.page(JOBS)


def test_no_page_opens_without_a_session(server: Server) -> None:
    public = {page.path for page in all_pages() if page.is_public}
    names = ("sign-in", "sign-out", "theme", "columns", "back")
    shared = {"/portal/shared/{job_id}", "/portal/shared/{job_id}/curve.png"}
    assert public == {f"/portal/{name}" for name in names} | shared
    closed = [page for page in all_pages() if not page.is_public]
    assert len(closed) > 5
    for page in closed:
        path = re.sub(r"\{[^}]*\}", "0", page.path)
        browser = Browser(server)
        answer = browser.get(path) if page.method == "GET" else browser.post(path)
        assert answer.status_code == 303, (page.method, path)
        assert answer.headers["location"].startswith("/portal/sign-in?"), (page.method, path)


def test_a_sign_out_ends_the_session_on_the_server(server: Server) -> None:
    browser = signed_in(server)
    secret = browser._client.cookies["tunesmith_session"]
    assert browser.post("/portal/sign-out").headers["location"] == "/portal/sign-in"
    browser._client.cookies.set("tunesmith_session", secret, path="/portal")
    assert browser.get(JOBS).status_code == 303


def test_the_cookie_is_of_the_host_only_over_https(server: Server) -> None:
    cookie = Browser(server, "https://testserver").sign_in(server.user).headers["set-cookie"]
    assert cookie.startswith("__Host-tunesmith_session=")
    assert all(part in cookie for part in ("Secure", "HttpOnly", "Path=/;", "SameSite=lax"))
    plain = Browser(server).sign_in(server.user).headers["set-cookie"]
    assert plain.startswith("tunesmith_session=")
    assert "Path=/portal" in plain


def test_the_cookie_opens_only_the_portal_and_a_key_only_the_api(server: Server) -> None:
    browser = Browser(server, "https://testserver")
    browser.sign_in(server.user)
    for route in policy.RULES:
        method, _, path = route.partition(" ")
        path = re.sub(r"\{[^}]*\}", "x", f"/v1{path}")
        reply = browser._client.request(method, path, json={}, headers=SAME_SITE)
        assert reply.status_code == 401, (route, reply.status_code)
    assert Browser(server).get(JOBS, headers=server.user.headers).status_code == 303


def test_a_revoked_key_ends_its_sessions(server: Server) -> None:
    browser = signed_in(server)
    with server.database.write.begin() as session:
        caller = keys.authenticate(session, server.user.headers["authorization"])
        keys.revoke(session, caller.key_id)
    assert browser.get(JOBS).status_code == 303


def test_a_session_slides_for_12_hours_and_ends_after_7_days(server: Server) -> None:
    browser = signed_in(server)

    def age(created: float, seen: float) -> None:
        with server.database.write.begin() as session:
            row = session.scalars(select(SessionRow)).one()
            sessions._seen.clear()
            session.execute(
                update(SessionRow).values(
                    created_at=row.created_at - created, last_seen=row.last_seen - seen
                )
            )

    def store() -> None:
        with server.database.write.begin() as session:
            sessions.store_seen(session)
            session.expire_all()
            row = session.scalars(select(SessionRow)).one()
            assert row.expires_at == sessions.expires_at(row)

    age(0, 11 * 3600)
    assert browser.get(JOBS).status_code == 200
    store()
    age(6.8 * 86_400, 11 * 3600)
    assert browser.get(JOBS).status_code == 200
    store()
    age(86_400, 0)
    assert browser.get(JOBS).status_code == 303


@pytest.mark.parametrize(
    "address",
    [
        "//evil.example", "https://evil.example", "/v1/files", "/portal/../v1/files", "/portalx",
        "/portal\\evil", "\\\\evil", "javascript:alert(1)", "/portal\r\nx: y", "", "portal/jobs",
        "//[", "http://[", "/portal/%2e%2e/v1/files", "/portal/.%2E/docs", f"/portal/{'a' * 2000}",
    ],
)  # fmt: skip
def test_the_way_back_is_a_path_of_the_portal(address: str) -> None:
    assert security.own_path(address) == "/portal"
    assert security.own_path("/portal/jobs?q=1#x") == "/portal/jobs?q=1#x"


@pytest.mark.parametrize("address", ["//[", f"{JOBS}?q=\u65e5"])
def test_any_way_back_is_survived(server: Server, address: str) -> None:
    browser, query = Browser(server), urlencode({"to": address})
    check_page(browser.page(f"/portal/sign-in?{query}"))
    assert browser.sign_in(server.user, address).status_code == 303
    headers = SAME_SITE | {"hx-request": "true"}
    sent = browser.post("/portal/columns", data={"to": address}, headers=headers)
    assert sent.headers["hx-redirect"].startswith("/portal")


def test_a_slash_at_the_end_of_an_address_is_left_out(server: Server) -> None:
    browser = signed_in(server)
    assert browser.get("/portal/").headers["location"] == "/portal"
    assert browser.get(f"{JOBS}/").headers["location"] == JOBS
    assert browser.get("/portal//evil.example//").headers["location"] == "/portal//evil.example"


def test_ten_failed_sign_ins_make_an_address_wait(server: Server) -> None:
    browser = Browser(server)
    for _ in range(10):
        assert browser.post("/portal/sign-in", data={"key": "wrong"}).status_code == 401
    refused = browser.sign_in(server.user)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    check_page(refused.text)


def test_other_addresses_do_not_wait_and_the_wait_ends_after_a_minute() -> None:
    now = 100.0
    failures = security.FailedSignIns(lambda: now)
    for _ in range(security.MOST_FAILURES):
        failures.add("192.0.2.1")
        failures.add("2001:db8::1")
        now += 2
    assert failures.seconds_to_wait("192.0.2.1") == 40
    assert failures.seconds_to_wait("2001:db8::ffff") == 40
    assert failures.seconds_to_wait("192.0.2.2") == failures.seconds_to_wait("2001:db8:1::1") == 0
    now = 160.0
    assert failures.seconds_to_wait("192.0.2.1") == 0


def test_a_link_signs_in_one_browser_once_and_only_after_a_press(server: Server) -> None:
    with server.database.write.begin() as session:
        caller = keys.authenticate(session, server.user.headers["authorization"])
        _, secret = sessions.create(session, caller.key_id, "link")
    first, second = Browser(server), Browser(server)
    check_page(first.page(f"/portal/sign-in?link={secret}"))
    assert first.get(JOBS).status_code == 303  # a preview of the link changes nothing
    assert first.post("/portal/sign-in", data={"link": secret}).status_code == 303
    assert first.get(JOBS).status_code == 200
    assert second.post("/portal/sign-in", data={"link": secret}).status_code == 401
    assert first.post("/portal/sign-in", data={"link": secret}).status_code == 401
    assert first.get(JOBS).status_code == 200  # a used link does not sign out
    second._client.cookies.set("tunesmith_session", secret, path="/portal")
    assert second.get(JOBS).status_code == 303
    cookie = first._client.cookies["tunesmith_session"]
    assert second.post("/portal/sign-in", data={"link": cookie}).status_code == 401
    with server.database.write.begin() as session:
        assert sessions.redeem_link(session, cookie, None) is None
    assert first.get(JOBS).status_code == 200  # a session is not a link


def test_a_display_session_only_reads_until_it_is_ended(server: Server) -> None:
    made = server.user.post("/v1/sessions", json={"name": "wall"}).json()
    secret = made["path"].partition("link=")[2]
    screen = Browser(server)
    assert screen.post("/portal/sign-in", data={"link": secret}).status_code == 303
    assert screen.get(JOBS).status_code == 200
    assert screen.post("/portal/settings/displays", data={"name": "x"}).status_code == 403
    assert made["expires_at"] - made["created_at"] == 90 * 86_400
    assert server.user.delete(f"/v1/sessions/{made['id']}").status_code == 200
    assert screen.get(JOBS).status_code == 303
