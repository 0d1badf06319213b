"""Browser without scripts, for the tests of pages: cookies, and the headers of browsers."""

from __future__ import annotations

from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from ..actors import Server
from ..callers import Caller

SAME_SITE = {"sec-fetch-site": "same-origin"}


class Browser:
    """Client with its own cookies."""

    def __init__(self, server: Server, base_url: str = "http://testserver") -> None:
        self._client = TestClient(server.app, base_url=base_url, client=("192.0.2.1", 50_000))

    def get(self, path: str, **options: Any) -> Response:  # Any: httpx's options
        return self._client.get(path, **{"follow_redirects": False, **options})

    def post(self, path: str, **options: Any) -> Response:  # Any: httpx's options
        return self._client.post(
            path, **{"follow_redirects": False, "headers": SAME_SITE, **options}
        )

    def page(self, path: str) -> str:
        reply = self.get(path)
        assert reply.status_code == 200, (path, reply.status_code, reply.text[:300])
        return reply.text

    def sign_in(self, caller: Caller, to: str = "") -> Response:
        key = caller.headers["authorization"].removeprefix("Bearer ")
        return self.post("/portal/sign-in", data={"key": key, "to": to})


def signed_in(server: Server, caller: Caller | None = None) -> Browser:
    browser = Browser(server)
    assert browser.sign_in(caller or server.user).status_code == 303
    return browser
