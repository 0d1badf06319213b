"""60 hostile texts as names, prompts, completions, metadata and file names, on every page.

A new page is tested as soon as it is registered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from httpx2 import Response

from tunesmith_server.portal import text
from tunesmith_server.portal.pages import all_pages
from tunesmith_server.portal.visit import Page
from tunesmith_server.services import keys

from ...browser.seeding import HOSTILE, World, fill
from ..actors import Server
from .browser import signed_in
from .page_checks import OWN_SCRIPT, Document

FOREIGN_TAGS = ("iframe", "object", "embed", "base", "style", "math", "plaintext")
NOT_MARKUP = ("application/json", "image/png", "")
MANY = 6
"""Things of each kind that a page is opened with; texts of all 60 are on the pages of jobs."""


@pytest.fixture
def world(server: Server) -> World:
    assert len(HOSTILE) == 60
    with server.database.write.begin() as session:
        owner = keys.authenticate(session, server.user.headers["authorization"]).key_id
    return fill(server.settings, server.database, server.storage, owner)


def things(world: World, parameter: str) -> list[str]:
    """Return the ids of hostile things that an address can name."""
    if parameter == "job_id":
        return [world.jobs["hostile"], world.jobs["hostile samples"]]
    if parameter == "file_id":
        named = [name for name in world.files if name.startswith("hostile-")]
        return [world.files[name] for name in named[:: len(named) // MANY]]
    return ["<script>alert(1)</script>", "{{7*7}}", "\u202e", *world.models[:1]]


def addresses(world: World, page: Page) -> Iterator[str]:
    """Yield the page's address with hostile things, and with a hostile query."""
    if page.path.startswith("/portal/shared/"):
        picture = page.path.rpartition("/")[2] if page.path.endswith(".png") else ""
        for address in world.links.values():
            yield address.replace("?", f"/{picture}?") if picture else address
    names = re.findall(r"\{(\w+)(?::path)?\}", page.path)
    pattern = page.path.replace(":path}", "}")
    for number in range(max((len(things(world, name)) for name in names), default=1)):
        values = {name: things(world, name)[number % len(things(world, name))] for name in names}
        yield pattern.format_map(values)
    for hostile in ('"><script>alert(1)</script>', "{{7*7}}", "a\u202eb\x1b"):
        names_of_query = ("q", "text", "model", "from", "step", "file", "jobs", "names", "row")
        query = dict.fromkeys(names_of_query, hostile)
        path = pattern.format_map({name: things(world, name)[0] for name in names})
        yield f"{path}?{'&'.join(f'{name}={_quoted(value)}' for name, value in query.items())}"


def _quoted(value: str) -> str:
    return "".join(f"%{byte:02x}" for byte in value.encode())


def check_inert(reply: Response, path: str) -> None:
    kind = reply.headers.get("content-type", "")
    assert reply.status_code < 500, (path, reply.text[:300])
    assert reply.headers["x-content-type-options"] == "nosniff", path
    assert "unsafe" not in reply.headers["content-security-policy"], path
    if not kind.startswith("text/html"):
        disposition = reply.headers.get("content-disposition", "")
        assert disposition.startswith("attachment") or kind in NOT_MARKUP, path
        return
    page = reply.text
    is_whole = page.lstrip().startswith("<!doctype")
    document = Document(page if is_whole else f"<main>{page}</main>")
    assert len(document.all("html")) == int(is_whole), path
    assert document.all(*FOREIGN_TAGS) == [], path
    for element in document.elements:
        assert not [name for name in element.attributes if name.startswith("on")], (path, element)
        if element.tag == "script":
            assert OWN_SCRIPT.fullmatch(element.attributes["src"]), (path, element)
        if element.tag in ("a", "form", "img", "link", "use"):
            address = element.attributes.get("href") or element.attributes.get("action") or "/"
            assert address.startswith(("/", "#", "?")), (path, address)
            assert not address.startswith("//"), (path, address)
        if element.tag.startswith("ts-"):
            assert "data-title" in element.attributes, (path, element)
    shown = "".join(element.text for element in document.all("main"))
    assert not text.HIDDEN.search(shown), (path, text.HIDDEN.search(shown))


def test_hostile_texts_are_inert_on_every_page(server: Server, world: World) -> None:
    browser = signed_in(server)
    opened = set()
    for page in all_pages():
        if page.method == "GET":
            for path in addresses(world, page):
                reply = browser.get(path)
                if reply.status_code != 303:
                    check_inert(reply, path)
                    opened.add(page.path)
                part = browser.get(path, headers={"hx-request": "true"})
                if part.status_code not in (204, 303):
                    check_inert(part, path)
    assert len(opened) >= 12


def test_forms_filled_with_hostile_texts_are_inert(server: Server, world: World) -> None:
    """Forms that are refused are shown again, with their texts."""
    browser = signed_in(server)
    names = ("name", "model", "training_file", "suffix", "grader", "learning_rate", "link", "to")
    for page in all_pages():
        if page.method == "GET" or "sign-out" in page.path or "{" in page.path:
            continue
        for hostile in HOSTILE.values():
            form = dict.fromkeys(names, hostile[:5000]) | {"key": ""}
            check_inert(browser.post(page.path, data=form), page.path)
        server.app.state.portal_failed_sign_ins._failures.clear()
