"""Main navigation: the top-level pages, in order."""

from __future__ import annotations

from typing import NamedTuple

from tunesmith_server.services.sessions import SignedIn


class Entry(NamedTuple):
    path: str
    name: str
    icon: str
    key: str
    """Letter of the keyboard shortcut: `g` and this letter open the page."""


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


def entries(paths: frozenset[str]) -> list[Entry]:
    """Return the entries of the main navigation whose pages exist."""
    return [entry for entry in _ALL if entry.path in paths]


def offered(paths: frozenset[str], signed_in: SignedIn | None) -> frozenset[str]:
    """Return the pages to which other pages link for this visitor: not the form for a new job or
    the playground if the visitor may not use them. The main navigation has all pages."""
    if signed_in is None:
        return paths
    needed = {NEW_JOB.path: "write", PLAYGROUND.path: "chat"}
    verbs = signed_in.principal.verbs
    return paths - {path for path, verb in needed.items() if verb not in verbs}


def is_current(entry: Entry, path: str) -> bool:
    if entry.path == "/portal":
        return path == entry.path
    return path == entry.path or path.startswith(f"{entry.path}/")
