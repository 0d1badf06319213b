"""What a page must not do: write to the console, fail a request, or ask another host."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Request, Response

_LOCAL_SCHEMES = ("data", "blob", "about")


class Watch:
    """Record of what the pages of a context did wrong. Violations of the Content-Security-Policy
    are console messages."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self._host = urlsplit(url).netloc
        self.messages: list[str] = []
        """Console messages and uncaught errors."""
        self.foreign: list[str] = []
        """Addresses of requests to other hosts."""
        self.failed: list[str] = []
        """Responses with a status of 400 or more."""
        self.expected: set[int] = set()
        """Statuses that a test provokes; Chromium's message about them is expected too."""
        context.on("console", self._console)
        context.on("weberror", lambda error: self.messages.append(f"error: {error.error}"))
        context.on("request", self._request)
        context.on("response", self._response)

    def _console(self, message: ConsoleMessage) -> None:
        provoked = any(f"status of {status}" in message.text for status in self.expected)
        if not provoked:
            self.messages.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in _LOCAL_SCHEMES and address.netloc != self._host:
            self.foreign.append(request.url)

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.failed.append(f"{response.status} {response.url}")

    def check(self) -> None:
        """Fail if anything was recorded."""
        found = (self.messages, self.foreign, self.failed)
        assert found == ([], [], []), found
