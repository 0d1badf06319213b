"""Every page of the portal: which role may open it, and that things of other projects are missing.

A new page is tested as soon as it is registered.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Literal

import pytest
from httpx2 import Response
from starlette.routing import Route, compile_path

from tunesmith_schema import Role
from tunesmith_server.identity.policy import RULES
from tunesmith_server.portal.refusals import ACTIONS
from tunesmith_server.portal.visit import Page

from ..actors import Server
from ..teams import Team, caller, two_teams
from .browser import Browser, signed_in
from .page_checks import Document
from .registered import OTHERS, name_of, registered

Visitor = Role | Literal["display"]
VERBS = {
    "display": {"read"},
    "viewer": {"read"},
    "member": {"read", "write", "chat"},
    "lead": {"read", "write", "chat", "manage"},
    "admin": {"read", "write", "chat", "manage", "administer"},
}
"""Verbs of each role, and of a display session."""
READS_ONLY = {"POST /portal/settings/sessions/{session_id}/end"}
"""Changes that a key that may only read may make: ending its own sessions."""
API_WORDS = re.compile(r"\b(GET|POST|DELETE|verbs?)\b|/v1|\{|'")
"""Words that a visitor who does not use the API does not know."""
EMPTY_FORM = (400, 404, 409, 422)
"""Statuses of a form without fields, and of a job in another state."""


def closed_pages() -> list[Page]:
    """Return the pages behind the sign-in; those that delete come last."""
    pages = [page for page in registered() if not page.is_public]
    return sorted(pages, key=lambda page: (page.method != "GET", "delete" in page.path))


def parameters(page: Page) -> list[str]:
    return re.findall(r"\{(\w+)(?::path)?\}", page.path)


def send(browser: Browser, page: Page, team: Team) -> Response:
    path = page.path
    for parameter in parameters(page):
        value = team.value(parameter) if hasattr(team, parameter) else "x"
        path = re.sub(rf"\{{{parameter}(:path)?\}}", value, path)
    return browser.get(path) if page.method == "GET" else browser.post(path)


def test_every_route_of_the_portal_is_in_the_table(server: Server) -> None:
    found = {
        f"{method} {route.path}"
        for route in server.app.routes
        if isinstance(route, Route) and route.path.startswith("/portal")
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert found == {name_of(page) for page in registered()} | OTHERS


def test_every_page_stands_for_routes_with_a_rule() -> None:
    for page in closed_pages():
        assert RULES.keys() >= set(page.needs), page.path
        if page.method != "GET" and name_of(page) not in READS_ONLY:
            verbs = {RULES[route] for route in page.needs}
            assert verbs - {"read"}, f"{page.path} changes something and needs only to read"


def test_every_action_that_may_be_refused_has_a_name() -> None:
    needs = {route for page in closed_pages() for route in page.needs}
    assert ACTIONS.keys() == {route for route in needs if RULES[route] != "read"}


def test_a_key_with_fewer_rights_than_its_role_is_named(server: Server) -> None:
    browser = signed_in(server, caller(server, "member", verbs=["read"]))
    refused = browser.post("/portal/data/upload")
    assert refused.status_code == 403
    said = said_in(refused)
    assert "Your role is member, but the API key of this session may not upload files." in said
    assert "Sign in with another API key, or ask a lead of the project for one." in said


@pytest.mark.parametrize("role", ["display", "viewer", "member", "lead", "admin"])
def test_each_page_answers_by_role(server: Server, role: Visitor) -> None:
    _, own, _ = two_teams(server)
    browser = open_as(server, role)
    for page in closed_pages():
        reply = send(browser, page, own)
        needed = {RULES[route] for route in page.needs}
        allowed = needed <= VERBS[role] and (page.method == "GET" or role != "display")
        detail = (role, name_of(page), reply.status_code, reply.text[:200])
        if allowed:
            assert reply.status_code < 400 or reply.status_code in EMPTY_FORM, detail
        else:
            assert reply.status_code == 403, detail
            said = said_in(reply)
            assert not API_WORDS.search(said), said
            if role != "display":
                assert f"ith the role {role}, you may not " in said, said
                assert "sk a" in said, said
        assert not reply.headers.get("location", "").startswith("/portal/sign-in"), detail


def said_in(refused: Response) -> str:
    """Return the text of a refusal; a script of the playground gets it as JSON."""
    if refused.headers["content-type"] == "application/json":
        error = refused.json()["error"]
        return f"{error['message']}. {error['hint']}."
    return Document(refused.text).all("main")[0].text


def open_as(server: Server, role: Visitor) -> Browser:
    """Return a browser that is signed in with a key of this role, or for display."""
    user = caller(server, "lead" if role == "display" else role)
    if role != "display":
        return signed_in(server, user)
    link = user.post("/v1/sessions", json={"name": "wall"}).json()["path"].partition("=")[2]
    browser = Browser(server)
    assert browser.post("/portal/sign-in", data={"link": link}).status_code == 303
    return browser


def sent_to(document: Document) -> set[str]:
    """Return the paths to which the forms and buttons of a page send changes."""
    posting = (item.attributes for item in document.elements)
    found = {
        item.get("action", "") if item.get("method") == "post" else item.get("hx-post", "")
        for item in posting
    }
    return {path.partition("?")[0] for path in found} - {""}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("role", ["display", "viewer", "member"])
def test_no_page_shows_a_control_that_its_visitor_may_not_use(
    server: Server, role: Visitor
) -> None:
    _, own, _ = two_teams(server)
    waiting = replace(own, job_id=own.server.create_job(own.file_id))
    browser = open_as(server, role)
    changes = [page for page in registered() if page.method != "GET"]
    asked = 0
    for page, team in product(closed_pages(), (own, waiting)):
        reply = send(browser, page, team) if page.method == "GET" else None
        if reply is None or not reply.headers.get("content-type", "").startswith("text/html"):
            continue
        document = Document(reply.text)
        asked += 1
        for path in sent_to(document):
            [change] = [item for item in changes if compile_path(item.path)[0].match(path)]
            needed = {RULES[route] for route in change.needs}
            may = change.is_public or (needed <= VERBS[role] and role != "display")
            assert may or name_of(change) in READS_ONLY, (role, page.path, path)
        linked = {item.attributes.get("href", "").partition("?")[0] for item in document.all("a")}
        assert "write" in VERBS[role] or "/portal/jobs/new" not in linked, (role, page.path)
    assert asked > 20


@pytest.mark.parametrize("role", ["lead", "admin"])
def test_things_of_another_project_are_missing(server: Server, role: Role) -> None:
    _, own, other = two_teams(server)
    browser = signed_in(server, caller(server, role))
    named = [page for page in closed_pages() if parameters(page)]
    assert len(named) > 10
    for page in named:
        if page.path.endswith("/{adapter_id}") or page.path.endswith("/{file_id}"):
            reply = send(browser, page, replace(own, adapter_id=other.adapter_id, file_id="x"))
            assert reply.status_code == 404, (role, name_of(page), reply.status_code)
        reply = send(browser, page, other)
        assert reply.status_code == 404, (role, name_of(page), reply.status_code)
