"""Bounds of a new API key, set by the key that creates it.

The new key has no more rights than its maker (the key that creates it), and does not live longer. A
limit of a key applies to this key alone; a limit of the project applies to all its keys together.
"""

from __future__ import annotations

import time
from collections.abc import Set

from tunesmith_schema import ErrorCode, Role, Verb
from tunesmith_server.core.errors import Forbidden
from tunesmith_server.core.principal import VERBS, Principal
from tunesmith_server.models import ApiKeyRow

LIMITS = ("max_running_jobs", "max_queued_jobs", "max_device_hours")
"""Job limits that a new key inherits."""


def check_verbs(principal: Principal, asked: Set[Verb], what: str) -> None:
    """Raise Forbidden if a new key would have verbs (rights) that the caller's key does not have.

    `what` names the new key in the error.
    """
    more = asked - principal.verbs
    if more:
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"this key cannot create {what} with the verbs {', '.join(sorted(more))}, which it "
            "does not have",
            param="role",
            hint="choose a role with fewer rights, or fewer verbs; GET /v1/me shows your verbs",
        )


def check_role(principal: Principal, role: Role) -> None:
    """Raise Forbidden if a member with this role would have more verbs than the caller's key."""
    check_verbs(principal, VERBS[role], "a member")


def end(maker: ApiKeyRow, seconds: int | None) -> float | None:
    """Return the expiry time of a new key as Unix seconds. The new key expires `seconds` from now;
    if `seconds` is None, it expires together with its maker. Raises Forbidden if the maker expires
    earlier."""
    if seconds is None:
        return maker.expires_at
    expires_at = time.time() + seconds
    if maker.expires_at is not None and expires_at > maker.expires_at:
        left = max(0, int(maker.expires_at - time.time()))
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"expires_in_seconds: this key expires in {left} s and cannot create a key for "
            f"{seconds} s",
            param="expires_in_seconds",
            hint="leave the field out, or use a key that expires later",
        )
    return expires_at


def requests_per_minute(
    principal: Principal, maker: ApiKeyRow, asked: int | None, default: int
) -> int | None:
    """Return the rate limit of a new key: the requested limit `asked`, or the maker's limit if
    `asked` is None. Raises Forbidden if `asked` is above the maker's limit.

    `default`: the server's limit for keys without a limit of their own; 0 means no limit. Only an
    admin may set a limit above the server's limit."""
    bound = maker.requests_per_minute or (0 if principal.is_admin else default)
    if asked is not None and bound and asked > bound:
        requests = "request" if bound == 1 else "requests"
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            f"requests_per_minute: this key may send {bound} {requests} per minute and cannot "
            f"create a key with {asked}",
            param="requests_per_minute",
            hint=f"send at most {bound}, or ask an admin",
        )
    return maker.requests_per_minute if asked is None else asked


def inherit_limits(maker: ApiKeyRow, key: ApiKeyRow) -> None:
    """Copy the maker's job limits to a new key."""
    for name in LIMITS:
        setattr(key, name, getattr(maker, name))
