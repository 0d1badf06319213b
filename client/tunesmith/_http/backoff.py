"""Which answers are worth asking again, and after how long. Knows nothing of how to ask."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 8.0
_LONGEST_ASKED_DELAY = 120.0
"""A server that asks for more is better told to the caller than slept through."""


def backoff(attempt: int) -> float:
    """Seconds before try `attempt` + 1 (0 is the first): exponential, with full jitter.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return random.uniform(0, min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(attempt, 16)))


def retry_delay(response: httpx.Response, attempt: int) -> float | None:
    """Seconds to wait before asking again; None when asking again is of no use."""
    if not _may_change(response):
        return None
    asked = _asked_delay(response.headers)
    if asked is None:
        return backoff(attempt)
    return asked if asked <= _LONGEST_ASKED_DELAY else None


def _may_change(response: httpx.Response) -> bool:
    told = response.headers.get("x-should-retry")
    if told in ("true", "false"):
        return bool(told == "true")
    return response.status_code in (408, 409, 429) or response.status_code >= 500


def _asked_delay(headers: httpx.Headers) -> float | None:
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    after = headers.get("retry-after", "")
    try:
        return max(0.0, float(after))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(after)
    except ValueError:
        return None
    if moment.tzinfo is None:  # "-0000": UTC by RFC 5322
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
