"""Rate limits: one token bucket per API key, in the memory of each API process. Pages that need no
sign-in have one bucket per client address.

API processes do not share buckets. A shared bucket would need a database write for each request,
and SQLite allows only one writer at a time. With N processes behind a proxy, a key may send up to N
times its limit. Limits that must hold exactly, such as quotas, are in the database.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import TooManyRequests
from tunesmith_server.core.principal import Principal

_MAX_BUCKETS = 10_000
"""Number of buckets above which full buckets are dropped; a full bucket has the same effect as no
bucket."""


@dataclass
class _Bucket:
    left: float
    at: float


class RateLimits:
    """Token buckets of all keys and client addresses. Only the event loop's thread may use an
    instance."""

    def __init__(self, default: int, now: Callable[[], float] = time.monotonic) -> None:
        self._default = default
        """Requests per minute of a key without its own limit; 0 means no limit."""
        self._now = now
        self._buckets: dict[str, _Bucket] = {}

    def check(self, principal: Principal) -> None:
        """Count one request. Raises TooManyRequests with the time to wait if the key has exceeded
        its limit."""
        if per_minute := principal.requests_per_minute or self._default:
            self._take(principal.key_id, per_minute, "this key")

    def check_address(self, network: str, per_minute: int) -> None:
        """Count one request that needs no key. All addresses of a network share one bucket. Raises
        TooManyRequests like `check`."""
        self._take(f"address {network}", per_minute, "your address")

    def _take(self, sender: str, per_minute: int, shown: str) -> None:
        now = self._now()
        bucket = self._buckets.get(sender)
        if bucket is None:
            self._drop_full(now)
            bucket = self._buckets[sender] = _Bucket(left=per_minute, at=now)
        bucket.left = min(per_minute, bucket.left + (now - bucket.at) * per_minute / 60)
        bucket.at = now
        if bucket.left < 1:
            seconds = max(1, math.ceil((1 - bucket.left) * 60 / per_minute))
            requests = "request" if per_minute == 1 else "requests"
            raise TooManyRequests(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                f"{shown} may send {per_minute} {requests} per minute",
                hint=f"repeat the request after {seconds} s",
                headers={"retry-after": str(seconds)},
            )
        bucket.left -= 1

    def _drop_full(self, now: float) -> None:
        """Drop the buckets of keys that sent no request for a minute. A bucket is full after a
        minute without requests."""
        if len(self._buckets) >= _MAX_BUCKETS:
            recent = {key: item for key, item in self._buckets.items() if now - item.at < 60}
            self._buckets = recent
