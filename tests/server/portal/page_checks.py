"""Checks that every page passes: structure, names of controls, nothing inline, links."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

from .browser import Browser

OWN_SCRIPT = re.compile(r"/portal/static/[0-9a-f]{12}/[\w./-]+\.js")

_VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "wbr",
}


_MODULES = {
    "data-upload": "upload",
    "data-watch": "live",
    "data-compare": "lists",
}
"""Attribute of an element -> module that the element needs."""


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    inside: list[str]
    """Tags of the elements around it, the outermost first."""
    texts: list[str] = field(repr=False)
    """All texts of the page, in order. The element has those from `begin` to `end`."""
    begin: int
    end: int

    @property
    def text(self) -> str:
        return "".join(self.texts[self.begin : self.end])


class Document(HTMLParser):
    """Parsed page. Raises AssertionError for tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self._texts: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == [], f"not closed: {self._open[-1].tag}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag}>: {names}"
        inside = [element.tag for element in self._open]
        attributes = {name: value or "" for name, value in attrs}
        now = len(self._texts)
        element = Element(tag, attributes, inside, self._texts, begin=now, end=now)
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> without a start"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop().end = len(self._texts)

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def all(self, *tags: str) -> list[Element]:
        return [element for element in self.elements if element.tag in tags]

    def with_id(self, name: str) -> Element:
        [found] = [item for item in self.elements if item.attributes.get("id") == name]
        return found


def check_page(page: str) -> Document:
    """Check the structure of a page, and return it parsed."""
    document = Document(page)
    [html] = document.all("html")
    assert html.attributes["lang"] == "en"
    assert len(document.all("main")) == 1
    assert len(document.all("h1")) == 1
    assert document.all("title")[0].text.endswith("– Tunesmith")  # noqa: RUF001  # an en dash
    levels = [int(item.tag[1]) for item in document.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(later - former <= 1 for former, later in pairwise(levels))
    ids = [item.attributes["id"] for item in document.elements if "id" in item.attributes]
    assert len(ids) == len(set(ids)), sorted(ids)
    _check_nothing_inline(document)
    _check_names(document, set(ids))
    _check_modules(document)
    return document


def _check_modules(document: Document) -> None:
    """Check that the page loads the modules of its elements, and no script twice."""
    scripts = [item.attributes["src"] for item in document.all("script")]
    assert len(scripts) == len(set(scripts))
    [htmx] = [item for item in document.all("script") if "htmx" in item.attributes["src"]]
    assert htmx.attributes.keys() == {"src"}, "a deferred htmx can start after the load event"
    loaded = {script.rpartition("/")[2].removesuffix(".js") for script in scripts}
    assert loaded >= {"htmx.min", "basics", "shortcuts", "palette"}
    for item in document.elements:
        names = {item.attributes.get("id")} & {"job", "new-job", "playground"}
        names |= {name for mark, name in _MODULES.items() if mark in item.attributes}
        assert loaded >= names, item
    ids = {item.attributes.get("id") for item in document.elements}
    assert "playground" in ids or "playground" not in loaded


def _check_nothing_inline(document: Document) -> None:
    for element in document.elements:
        assert element.tag != "style"
        assert "style" not in element.attributes, element
        assert not [name for name in element.attributes if name.startswith(("on", "hx-on"))], (
            element
        )
        if element.tag == "script":
            assert element.text == ""
            assert OWN_SCRIPT.fullmatch(element.attributes["src"]), element
        for name in ("src", "href", "action", "hx-get", "hx-post"):
            address = element.attributes.get(name, "/")
            assert address.startswith(("/", "#", "?")), (element.tag, name, address)
            assert not address.startswith("//"), (element.tag, name, address)


def _check_names(document: Document, ids: set[str]) -> None:
    labelled = {item.attributes.get("for") for item in document.all("label")}
    for item in document.all("input", "select", "textarea"):
        if item.attributes.get("type") == "hidden":
            continue
        named = "aria-label" in item.attributes or "label" in item.inside
        assert named or item.attributes.get("id") in labelled, item
    for item in document.all("button", "a"):
        assert item.text.strip() or item.attributes.get("aria-label"), item
    for item in document.all("th"):
        assert item.attributes.get("scope") in ("col", "row"), item
    for item in document.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(item.attributes.get(name, "").split()) <= ids, item
        if item.tag == "svg":
            assert "aria-hidden" in item.attributes or "aria-label" in item.attributes, item


def check_links(browser: Browser, document: Document, missing: tuple[str, ...] = ()) -> None:
    """Check that each address of the page answers. `missing` are starts of pages to come."""
    for item in document.all("a", "link", "script", "use"):
        address = item.attributes.get("href") or item.attributes.get("src", "")
        path = address.partition("#")[0]
        if path and not path.startswith(missing or ("\0",)):
            assert browser.get(path).status_code in (200, 303), (item.tag, address)
