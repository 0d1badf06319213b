"""API keys: create, list, revoke, authenticate."""

from __future__ import annotations

import time

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import NotFound, Unauthorized
from tunesmith_server.core.security import key_hash, new_key
from tunesmith_server.models import ApiKeyRow

_BY_HASH = select(ApiKeyRow.id, ApiKeyRow.revoked_at).where(ApiKeyRow.sha256 == bindparam("hash"))
"""Every request runs this query, so it is built once and reads only two columns."""


_names: dict[str, str] = {}
_MAX_NAMES = 10_000
"""Number of names that a process remembers."""


def create(session: Session, name: str, key: str | None = None) -> tuple[ApiKeyRow, str]:
    """Create a key named `name`. Only this call returns the plain key."""
    key = key or new_key()
    row = ApiKeyRow(
        id=new_id("key"), name=name, sha256=key_hash(key), prefix=key[:8], created_at=time.time()
    )
    session.add(row)
    session.flush()
    return row, key


def ensure(session: Session, name: str, key: str) -> ApiKeyRow:
    """Register an existing key if it is not registered yet."""
    row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.sha256 == key_hash(key)))
    return row or create(session, name, key)[0]


def list_all(session: Session) -> list[ApiKeyRow]:
    return list(session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at)))


def revoke(session: Session, key_id: str) -> ApiKeyRow:
    row = session.get(ApiKeyRow, key_id)
    if row is None:
        raise NotFound(
            ErrorCode.NOT_FOUND, f"no key {key_id!r}", hint="`tunesmith keys list` lists all keys"
        )
    row.revoked_at = row.revoked_at or time.time()
    return row


def name_of(session: Session, key_id: str) -> str | None:
    """Return the name of a key, which never changes; None for an unknown key."""
    name = _names.get(key_id)
    if name is None:
        name = session.scalar(select(ApiKeyRow.name).where(ApiKeyRow.id == key_id))
        if name is not None and len(_names) < _MAX_NAMES:
            _names[key_id] = name
    return name


def valid(session: Session, key_ids: set[str]) -> set[str]:
    """Return the ids of keys that exist and are not revoked."""
    query = select(ApiKeyRow.id).where(ApiKeyRow.id.in_(key_ids), ApiKeyRow.revoked_at.is_(None))
    return set(session.scalars(query))


def authenticate(session: Session, authorization: str | None) -> str:
    """Return the id of the key in an `Authorization: Bearer ...` header."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "no API key: send the header 'Authorization: Bearer <key>'",
            hint="the first start wrote a key to api-key in the server's data directory; "
            "`tunesmith keys create NAME` creates another key",
        )
    row = session.execute(_BY_HASH, {"hash": key_hash(key.strip())}).one_or_none()
    if row is None or row.revoked_at is not None:
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            f"API key {key.strip()[:6]}... " + ("has been revoked" if row else "is not valid"),
            hint="`tunesmith keys create NAME` on the server's host creates a key",
        )
    key_id: str = row.id
    return key_id
