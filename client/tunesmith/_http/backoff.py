"""Retry rules: which requests are repeated, and after which delay."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 8.0
_LONGEST_RETRY_AFTER = 120.0
"""Longest `Retry-After`, in seconds, that the client waits for; if the delay is longer, the client
does not retry."""


def backoff(attempt: int) -> float:
    """Return the seconds to wait after try `attempt` (from 0): exponential backoff with full
    jitter.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return random.uniform(0, min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(attempt, 16)))


def retry_delay(response: httpx.Response, attempt: int) -> float | None:
    """Return the seconds before the next try, or None if the request must not be repeated."""
    if not _is_retryable(response):
        return None
    seconds = _retry_after(response.headers)
    if seconds is None:
        return backoff(attempt)
    return seconds if seconds <= _LONGEST_RETRY_AFTER else None


def _is_retryable(response: httpx.Response) -> bool:
    instruction = response.headers.get("x-should-retry")
    if instruction in ("true", "false"):
        return bool(instruction == "true")
    return response.status_code in (408, 409, 429) or response.status_code >= 500


def _retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds from `retry-after-ms` or `Retry-After` (seconds or a date), or None."""
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
