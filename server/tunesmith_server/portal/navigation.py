"""Main navigation: the top-level pages, in order."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    path: str
    name: str
    icon: str
    key: str
    """Letter of the keyboard shortcut: `g` and this letter open the page."""


_ALL = (
    Entry("/portal", "Home", "home", "h"),
    Entry("/portal/jobs", "Jobs", "jobs", "j"),
    Entry("/portal/data", "Data sets", "data", "d"),
    Entry("/portal/models", "Models", "model", "m"),
    Entry("/portal/playground", "Playground", "chat", "p"),
    Entry("/portal/workers", "Workers", "workers", "w"),
    Entry("/portal/settings", "Settings", "settings", "s"),
)
NEW_JOB = Entry("/portal/jobs/new", "New job", "plus", "n")


def entries(paths: frozenset[str]) -> list[Entry]:
    """Return the entries of the main navigation whose pages exist."""
    return [entry for entry in _ALL if entry.path in paths]


def is_current(entry: Entry, path: str) -> bool:
    if entry.path == "/portal":
        return path == entry.path
    return path == entry.path or path.startswith(f"{entry.path}/")
