"""Limits on connections, per address and in total.

A connection is "waiting" until it has a complete request. A connection with a complete request is
"busy" until its response is complete. A new connection above a limit replaces the oldest waiting
connection, so idle sockets do not block clients. The new connection is refused only if all other
connections are busy.

uvicorn's `limit_concurrency` is not set: above that limit, uvicorn refuses every request, including
`/healthz`.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import time
from collections import Counter
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Protocol

log = logging.getLogger(__name__)

MAX_OPEN_FILES = 65_536
"""Limit of open files that the process requests; each connection needs one open file."""
_OTHER_FILES = 256
"""Number of open files for the database, the storage and temporary files."""


class Connection(Protocol):
    """Attributes and methods of a connection that `ConnectionGuard` uses."""

    client: tuple[str, int] | None
    transport: Any  # Any: asyncio.Transport or uvloop's

    def __hash__(self) -> int: ...

    def check(self, now: float) -> None:
        """Close the connection if its client is too slow. `now`: seconds of time.monotonic."""


class ConnectionGuard:
    """Open connections of one process. Only the event loop's thread uses this object."""

    def __init__(self, *, per_address: int, total: int, trusted_proxies: str = "") -> None:
        self._per_address, self._total = per_address, total
        self._any_proxy = trusted_proxies == "*"
        self._proxies = [
            ip_network(part) for part in trusted_proxies.split(",") if part and part != "*"
        ]
        self._counts: Counter[str] = Counter()
        self._open: dict[Connection, str] = {}
        self._waiting: dict[Connection, str] = {}
        """Waiting connections, oldest first."""
        self._next_warning = 0.0

    def add(self, connection: Connection) -> bool:
        """Count a new connection. If there are too many connections, remove the oldest waiting
        connection. Return False if the removed connection is the new connection; the caller then
        closes the new connection."""
        address = self._address_of(connection.client)
        self._open[connection] = self._waiting[connection] = address
        self._counts[address] += 1
        if address and self._counts[address] > self._per_address:
            candidates = (one for one, its in self._waiting.items() if its == address)
        elif len(self._open) > self._total:
            candidates = (one for one in self._waiting)
        else:
            return True
        oldest = next(candidates)
        self._warn(address or "all addresses")
        self.remove(oldest)
        if oldest is connection:
            return False
        oldest.transport.close()
        return True

    def remove(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        address = self._open.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def set_waiting(self, connection: Connection, waiting: bool) -> None:
        self._waiting.pop(connection, None)
        if waiting and connection in self._open:
            self._waiting[connection] = self._open[connection]

    def check(self) -> None:
        """Close connections that are too slow. The listener calls this method once per second."""
        now = time.monotonic()
        for connection in list(self._open):
            connection.check(now)

    def _warn(self, whose: str) -> None:
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + 60
            log.warning(
                "too many connections from %s: the oldest connections without a request are closed "
                "(limits: %d per address, TUNESMITH_MAX_CONNECTIONS_PER_ADDRESS; %d in total, "
                "because of the limit of open files)",
                whose, self._per_address, self._total,
            )  # fmt: skip

    def _address_of(self, client: tuple[str, int] | None) -> str:
        """Return the address whose limit applies to a connection; "" for proxies, which have no
        limit. All IPv6 addresses of a /64 network count as one address, because one host can have
        them all."""
        if client is None or self._any_proxy:
            return ""
        try:
            address = ip_address(client[0].partition("%")[0])
        except ValueError:
            return client[0]
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        if any(address in network for network in self._proxies):
            return ""
        if isinstance(address, IPv6Address):
            return str(ip_network((address, 64), strict=False))
        return str(address)


def raise_file_limit() -> int:
    """Raise the process's limit of open files as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def max_connections(open_files: int) -> int:
    """Return the largest number of connections that a limit of open files allows.

    A download needs a second open file.
    """
    return max(64, (open_files - _OTHER_FILES) // 2)
