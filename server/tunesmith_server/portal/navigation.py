"""Main navigation: the top-level pages, in order."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tunesmith_server.services.sessions import SignedIn


class Entry(NamedTuple):
    path: str
    name: str
    icon: str
    key: str
    """Letter of the keyboard shortcut: `g` and this letter open the page; empty for none."""


PLAYGROUND = Entry("/portal/playground", "Playground", "chat", "p")
_ALL = (
    Entry("/portal", "Home", "home", "h"),
    Entry("/portal/jobs", "Jobs", "jobs", "j"),
    Entry("/portal/data", "Data sets", "data", "d"),
    Entry("/portal/models", "Models", "model", "m"),
    PLAYGROUND,
    Entry("/portal/workers", "Workers", "workers", "w"),
    Entry("/portal/settings", "Settings", "settings", "s"),
)
NEW_JOB = Entry("/portal/jobs/new", "New job", "plus", "n")
_WRITING = (
    NEW_JOB,
    Entry("/portal/data#file", "Upload a data set", "upload", ""),
    Entry("/portal/settings#displays", "Make a link for an office screen", "link", ""),
)
_READING = (
    Entry("/portal/compare", "Compare jobs", "jobs", ""),
    Entry("/portal/screen", "Open the office screen", "workers", ""),
    Entry("/portal/settings#sessions", "End a session", "settings", ""),
    Entry("/docs", "Read the API reference", "info", ""),
)


def entries(paths: frozenset[str]) -> list[Entry]:
    """Return the entries of the main navigation whose pages exist."""
    return [entry for entry in _ALL if entry.path in paths]


def actions(verbs: Collection[str]) -> tuple[Entry, ...]:
    """Return the actions that a caller with the rights `verbs` can start from any page."""
    return (*_WRITING, *_READING) if "write" in verbs else _READING


def offered(paths: frozenset[str], signed_in: SignedIn | None) -> frozenset[str]:
    """Return the paths that a page may show this visitor as links. The form for a new job and the
    playground are left out if the visitor may not use them. The main navigation links to all
    pages."""
    if signed_in is None:
        return paths
    needed = {NEW_JOB.path: "write", PLAYGROUND.path: "chat"}
    verbs = signed_in.principal.verbs
    return paths - {path for path, verb in needed.items() if verb not in verbs}


def is_current(entry: Entry, path: str) -> bool:
    if entry.path == "/portal":
        return path == entry.path
    return path == entry.path or path.startswith(f"{entry.path}/")
