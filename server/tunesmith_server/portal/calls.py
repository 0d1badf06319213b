"""API calls that a page shows in its footer, as curl, SDK and CLI."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Call:
    """API call that returns the data of a page, with the ids filled in, such as the job's id."""

    path: str
    """Path and query, for example `/v1/fine_tuning/jobs?state=running`."""
    sdk: str
    """Line of Python that makes the call; `client` is a `tunesmith.Client`."""
    cli: str
    """Command that makes the call; empty if no command makes it."""
    method: str = "GET"

    def curl(self, origin: str) -> str:
        """Return a curl command for a shell in which TUNESMITH_API_KEY has the key."""
        verb = "" if self.method == "GET" else f"-X {self.method} "
        key = '-H "Authorization: Bearer $TUNESMITH_API_KEY"'
        quoted = f"{origin}{self.path}".replace("'", "%27")
        return f"curl {verb}{key} '{quoted}'"
