"""Calls of the API that a page shows in its foot, as curl, SDK and CLI."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call behind a page, with the ids of this page."""

    path: str
    """Path and query, for example `/v1/fine_tuning/jobs?state=running`."""
    sdk: str
    """Line of Python, where `client` is a `tunesmith.Client`."""
    cli: str
    """Command line; empty if no command does this."""
    method: str = "GET"

    def curl(self, origin: str) -> str:
        """Return a command for a shell that has the key in TUNESMITH_API_KEY."""
        verb = "" if self.method == "GET" else f"-X {self.method} "
        key = '-H "Authorization: Bearer $TUNESMITH_API_KEY"'
        quoted = f"{origin}{self.path}".replace("'", "%27")
        return f"curl {verb}{key} '{quoted}'"
