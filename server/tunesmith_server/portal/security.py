"""Rules that protect the portal's users: response headers, requests from other sites, addresses to
return to after a sign-in, and failed sign-ins."""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; worker-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every page."""

HOME = "/portal"
MOST_FAILURES = 10
"""Maximum number of failed sign-ins of one client address in `FAILURE_SECONDS`."""
FAILURE_SECONDS = 60.0
_MAX_ADDRESSES = 10_000
"""If this many client addresses have failed sign-ins, addresses without recent failures are
forgotten."""
_MAX_PATH = 2000
"""Maximum length of an address that `own_path` accepts; proxies refuse long headers."""


class DefaultHeaders:
    """ASGI middleware for all responses except those of the API: adds each header of `HEADERS` that
    is missing, for example to static files and to pages that do not exist."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(("/v1/", "/internal/")):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", [])))
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def is_cross_site(request: Request) -> bool:
    """Return True unless the browser's headers show that a page of this server sends the request.
    Old browsers do not send `Sec-Fetch-Site`. Over plain http, other browsers send `Sec-Fetch-Site`
    only to a server on the same machine. Without `Sec-Fetch-Site`, the header `Origin` decides;
    browsers send it with each request that changes data.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return request.headers.get("origin") != own


def own_path(address: str) -> str:
    """Return `address` if it is a path of the portal, else the path of its first page. The result
    is ASCII, as headers must be."""
    if not address.isprintable() or "\\" in address or len(address) > _MAX_PATH:
        return HOME
    try:
        parts = urlsplit(address)
    except ValueError:  # not an address, such as "//["
        return HOME
    path = unquote(parts.path)  # browsers resolve "%2e%2e" like ".."
    is_inside = path == HOME or path.startswith(f"{HOME}/")
    if parts.scheme or parts.netloc or not is_inside or ".." in path.split("/"):
        return HOME
    return quote(address, safe="%/?#[]@:!$&'()*+,;=")


def referring_page(request: Request) -> str:
    """Return the address of the portal's page that sent the request. If the page is unknown, return
    the address of the portal's first page."""
    try:
        came_from = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return HOME
    return own_path(came_from.path + (f"?{came_from.query}" if came_from.query else ""))


class FailedSignIns:
    """Failed sign-ins of each client address. Each API process counts for itself."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def seconds_to_wait(self, address: str | None) -> int:
        """Return the seconds until the client `address` may try to sign in again; 0 if it may try
        now."""
        with self._lock:
            moments = self._failures.get(network_of(address))
        if moments is None or len(moments) < MOST_FAILURES:
            return 0
        return max(0, math.ceil(moments[0] + FAILURE_SECONDS - self._now()))

    def add(self, address: str | None) -> None:
        now, network = self._now(), network_of(address)
        with self._lock:
            if len(self._failures) >= _MAX_ADDRESSES:
                recent = now - FAILURE_SECONDS
                kept = {key: item for key, item in self._failures.items() if item[-1] > recent}
                self._failures = kept
            self._failures.setdefault(network, deque(maxlen=MOST_FAILURES)).append(now)


def network_of(address: str | None) -> str:
    """Return the network that one client can use: an IPv4 address, or a /64 network of IPv6
    addresses."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
