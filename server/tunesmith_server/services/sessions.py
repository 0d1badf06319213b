"""Sessions of the portal. A user signs in with an API key and gets a cookie with 256 random bits.

A session always has the current rights of its key. If the key is revoked or expires, the session
ends. If the key loses rights, the session loses the same rights. A display session, for an office
screen, may only read.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import case, delete, select, update
from sqlalchemy.orm import Session

from tunesmith_server.core.database import new_id
from tunesmith_server.core.principal import Principal
from tunesmith_server.core.security import key_hash
from tunesmith_server.models import SessionRow

from . import keys

Kind = Literal["browser", "display", "link"]

IDLE_SECONDS = 12 * 3600.0
"""Seconds from the last request of a browser's session to its end."""
LONGEST_SECONDS = 7 * 86_400.0
"""Maximum seconds from a sign-in to the end of a browser's session."""
DISPLAY_SECONDS = 90 * 86_400.0
LINK_SECONDS = 15 * 60.0
"""Lifetime of a sign-in link."""
_SEEN_SECONDS = 60.0
"""A request updates the time of its session's last request only if the known time is older than
this number of seconds."""
_MAX_USER_AGENT = 200

_seen: dict[str, float] = {}
"""Times of last requests that are not stored yet; the keys are session ids."""
_seen_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class SignedIn:
    """Session of a request, and the caller."""

    id: str
    kind: Kind
    principal: Principal


def create(
    session: Session,
    key_id: str,
    kind: Kind = "browser",
    *,
    name: str | None = None,
    user_agent: str | None = None,
) -> tuple[SessionRow, str]:
    """Create a session of an API key. Only this call returns the session's secret."""
    secret, now = secrets.token_urlsafe(32), time.time()
    seconds = {"browser": IDLE_SECONDS, "display": DISPLAY_SECONDS, "link": LINK_SECONDS}[kind]
    row = SessionRow(
        id=new_id("session"),
        sha256=key_hash(secret),
        key_id=key_id,
        kind=kind,
        name=name,
        created_at=now,
        last_seen=now,
        expires_at=now + seconds,
        user_agent=user_agent[:_MAX_USER_AGENT] if user_agent else None,
    )
    session.add(row)
    session.flush()
    return row, secret


def find(session: Session, secret: str, *kinds: Kind) -> SessionRow | None:
    """Return the session that has this secret and one of these `kinds`; None if it has ended."""
    row = session.scalar(select(SessionRow).where(SessionRow.sha256 == key_hash(secret)))
    if row is None or row.kind not in kinds or _end(row) <= time.time():
        return None
    return row


def authenticate(session: Session, secret: str, project: str | None = None) -> SignedIn | None:
    """Return the caller whose cookie has `secret`, or None if the session or its key has ended.

    `project` is the project in which an admin key acts, like the header `OpenAI-Project`.
    """
    row = find(session, secret, "browser", "display")
    principal = None if row is None else keys.principal_of(session, row.key_id, project)
    if row is None or principal is None:
        return None
    now = time.time()
    if now - max(row.last_seen, _seen.get(row.id, 0.0)) > _SEEN_SECONDS:
        with _seen_lock:
            _seen[row.id] = now
    if row.kind == "display":
        principal = replace(principal, verbs=principal.verbs & {"read"})
        return SignedIn(id=row.id, kind="display", principal=principal)
    return SignedIn(id=row.id, kind="browser", principal=principal)


def redeem_link(session: Session, secret: str, user_agent: str | None) -> str | None:
    """Sign in with a one-time link, which cannot be used again. Return the secret of a new session,
    or None if the link was used, has expired or belongs to a revoked key."""
    used = session.scalar(
        delete(SessionRow)
        .where(
            SessionRow.sha256 == key_hash(secret),
            SessionRow.kind == "link",
            SessionRow.expires_at > time.time(),
        )
        .returning(SessionRow.key_id)
    )
    if used is None or keys.principal_of(session, used) is None:
        return None
    return create(session, used, user_agent=user_agent)[1]


def list_own(session: Session, key_ids: Iterable[str]) -> list[SessionRow]:
    """Return the sessions of these keys that have not ended, newest first."""
    query = select(SessionRow).where(SessionRow.key_id.in_(list(key_ids)))
    query = query.where(SessionRow.kind != "link").order_by(SessionRow.created_at.desc())
    now = time.time()
    return [row for row in session.scalars(query) if _end(row) > now]


def end(session: Session, session_id: str) -> None:
    session.execute(delete(SessionRow).where(SessionRow.id == session_id))


def seen_at(row: SessionRow) -> float:
    """Return the time of the session's last request, as far as this process knows."""
    return max(row.last_seen, _seen.get(row.id, 0.0))


def expires_at(row: SessionRow) -> float:
    """Return the time at which the session ends without another request."""
    return _end(row)


def _end(row: SessionRow) -> float:
    if row.kind != "browser":
        return row.expires_at
    return _slid(row.created_at, seen_at(row))


def _slid(created_at: float, seen: float) -> float:
    return min(seen + IDLE_SECONDS, created_at + LONGEST_SECONDS)


def has_seen() -> bool:
    return bool(_seen)


def store_seen(session: Session) -> None:
    """Store the last-request and expiry times of sessions."""
    with _seen_lock:
        seen = dict(_seen)
        _seen.clear()
    for session_id, moment in seen.items():
        idle, longest = moment + IDLE_SECONDS, SessionRow.created_at + LONGEST_SECONDS
        slid = case((longest < idle, longest), else_=idle)
        browser = SessionRow.kind == "browser"
        session.execute(
            update(SessionRow)
            .where(SessionRow.id == session_id, SessionRow.last_seen < moment)
            .values(
                last_seen=moment,
                expires_at=case((browser, slid), else_=SessionRow.expires_at),
            ),
            execution_options={"synchronize_session": False},
        )


def delete_ended(session: Session) -> None:
    session.execute(delete(SessionRow).where(SessionRow.expires_at < time.time() - IDLE_SECONDS))
