"""API keys: create, list, revoke, authenticate."""

from __future__ import annotations

import threading
import time
from typing import Any

from sqlalchemy import and_, bindparam, or_, select, update
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Role, Verb
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import NotFound, Unauthorized
from tunesmith_server.core.principal import Principal, ProjectLimits, allowed_verbs, weaker
from tunesmith_server.core.security import SHOWN_LETTERS, key_hash, new_key
from tunesmith_server.models import (
    DEFAULT_PROJECT,
    ApiKeyRow,
    ProjectMemberRow,
    ProjectRow,
    UserRow,
)

_WITH_RIGHTS = (
    select(
        *(ApiKeyRow.id, ApiKeyRow.role, ApiKeyRow.verbs, ApiKeyRow.project_id, ApiKeyRow.user_id),
        *(ApiKeyRow.revoked_at, ApiKeyRow.expires_at, ApiKeyRow.requests_per_minute),
        *(ApiKeyRow.last_used_at, ProjectRow.archived_at),
        *(ProjectRow.max_bytes, ProjectRow.base_models),
        UserRow.role.label("user_role"),
        ProjectMemberRow.role.label("member_role"),
    )
    .outerjoin(ProjectRow, ProjectRow.id == ApiKeyRow.project_id)
    .outerjoin(UserRow, UserRow.id == ApiKeyRow.user_id)
    .outerjoin(
        ProjectMemberRow,
        and_(
            ProjectMemberRow.project_id == ApiKeyRow.project_id,
            ProjectMemberRow.user_id == ApiKeyRow.user_id,
        ),
    )
)
_BY_HASH = _WITH_RIGHTS.where(ApiKeyRow.sha256 == bindparam("hash"))
"""Query that finds the key with a given hash. Each request runs this query, so it must be fast: it
is built only once, and selects only the columns that a request needs."""
_USED_SECONDS = 60.0
"""Seconds between two writes of the time at which a key was last used."""

_names: dict[str, str] = {}
_MAX_NAMES = 10_000
"""Maximum number of key names that a process keeps in memory."""
_uses: dict[str, float] = {}
"""Time of last use of each key whose last use is not stored yet. The keys of the dict are key
ids."""
_uses_lock = threading.Lock()


def create(
    session: Session,
    name: str,
    key: str | None = None,
    *,
    role: Role = "member",
    project_id: str = DEFAULT_PROJECT,
    user_id: str | None = None,
    verbs: list[Verb] | None = None,
    expires_at: float | None = None,
    requests_per_minute: int | None = None,
) -> tuple[ApiKeyRow, str]:
    """Create a key named `name`. Only this call returns the plain key."""
    key = key or new_key()
    row = ApiKeyRow(
        id=new_id("key"),
        name=name,
        sha256=key_hash(key),
        prefix=key[:SHOWN_LETTERS],
        created_at=time.time(),
        role=role,
        project_id=project_id,
        user_id=user_id,
        verbs=verbs,
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
    )
    session.add(row)
    session.flush()
    return row, key


def ensure_admin(session: Session, name: str, key: str) -> ApiKeyRow:
    """Register an existing key as an admin key, if it is not registered yet. Earlier releases
    registered this key without a role."""
    row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.sha256 == key_hash(key)))
    if row is None:
        return create(session, name, key, role="admin")[0]
    row.role = "admin"
    return row


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


def valid(session: Session, uses: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs in `uses` whose key still gives access to the project. Each pair has the id
    of a key and the id of a project."""
    named = _WITH_RIGHTS.where(ApiKeyRow.id.in_({key_id for key_id, _ in uses}))
    good = {row.id: row for row in session.execute(named) if _reason_of_refusal(row) is None}
    foreign = {
        project_id
        for key_id, project_id in uses
        if key_id in good and good[key_id].project_id != project_id
    }
    active = select(ProjectRow.id).where(
        ProjectRow.id.in_(foreign), ProjectRow.archived_at.is_(None)
    )
    for_admins = set(session.scalars(active)) if foreign else set()
    return {
        (key_id, project_id)
        for key_id, project_id in uses
        if (row := good.get(key_id)) is not None
        and (project_id == row.project_id or (_role(row) == "admin" and project_id in for_admins))
    }


def check_open(session: Session, use: tuple[str, str]) -> None:
    """Raise Unauthorized if the key no longer gives access to the project; `use` has the ids of the
    key and of the project."""
    if use not in valid(session, {use}):
        raise revoked()


def revoked() -> Unauthorized:
    return Unauthorized(
        ErrorCode.INVALID_API_KEY,
        "the API key has been revoked",
        hint="`tunesmith keys create NAME` on the server's host creates a key",
    )


def authenticate(
    session: Session, authorization: str | None, project: str | None = None
) -> Principal:
    """Return the caller with the key in an `Authorization: Bearer ...` header.

    `project` is the value of the header `OpenAI-Project`; an admin key may name any project.
    """
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "no API key: send the header 'Authorization: Bearer <key>'",
            hint="the first start wrote a key to api-key in the server's data directory; "
            "`tunesmith keys create NAME` creates another key",
        )
    row = session.execute(_BY_HASH, {"hash": key_hash(key.strip())}).one_or_none()
    reason = "is not valid" if row is None else _reason_of_refusal(row)
    if row is None or reason:
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            f"API key {key.strip()[:6]}... {reason}",
            hint="`tunesmith keys create NAME` on the server's host creates a key",
        )
    return _principal(session, row, project)


def principal_of(session: Session, key_id: str, project: str | None = None) -> Principal | None:
    """Return the caller with the rights of a key, like `authenticate`; None if the key no longer
    gives access to its project."""
    row = session.execute(_WITH_RIGHTS.where(ApiKeyRow.id == key_id)).one_or_none()
    if row is None or _reason_of_refusal(row):
        return None
    return _principal(session, row, project)


def _principal(session: Session, row: Any, project: str | None) -> Principal:
    # Any: a row of `_WITH_RIGHTS`
    _note_use(row)
    role = _role(row)
    return Principal(
        key_id=row.id,
        role=role,
        project=_opened(session, row, role, project),
        verbs=allowed_verbs(role, row.verbs),
        user_id=row.user_id,
        requests_per_minute=row.requests_per_minute,
    )


def _reason_of_refusal(row: Any) -> str | None:  # Any: a row of `_WITH_RIGHTS`
    if row.revoked_at is not None:
        return "has been revoked"
    if row.expires_at is not None and row.expires_at <= time.time():
        return "has expired"
    if row.user_id is not None and row.user_role is None:
        return "has been revoked, because its user was deleted"
    if row.user_id is not None and row.user_role != "admin" and row.member_role is None:
        return "has been revoked: its user is no member of the project any more"
    if row.archived_at is not None and _role(row) != "admin":
        return "belongs to an archived project"
    return None


def _role(row: Any) -> Role:  # Any: a row of `_WITH_RIGHTS`
    role: Role = row.role
    if row.user_id is None:
        return role
    return weaker(role, "admin" if row.user_role == "admin" else row.member_role)


def _opened(
    session: Session,
    row: Any,  # Any: a row of `_WITH_RIGHTS`
    role: Role,
    asked: str | None,
) -> ProjectLimits:
    """Return the project of a request; an admin key may choose any project."""
    if not asked or asked == row.project_id:
        return _limits(row.project_id, row)
    if role == "admin":
        project = session.get(ProjectRow, asked)
        if project is not None and project.archived_at is None:
            return _limits(asked, project)
    raise NotFound(
        ErrorCode.NOT_FOUND,
        f"this key cannot open the project {asked!r}",
        param="OpenAI-Project",
        hint="leave the header out, or use a key of that project",
    )


def _limits(project_id: str, row: Any) -> ProjectLimits:  # Any: a row with a project's columns
    models = row.base_models
    return ProjectLimits(
        project_id=project_id,
        max_bytes=row.max_bytes,
        base_models=None if models is None else frozenset(models),
    )


def _note_use(row: Any) -> None:  # Any: a row of `_WITH_RIGHTS`
    now = time.time()
    if row.last_used_at is None or now - row.last_used_at > _USED_SECONDS:
        with _uses_lock:
            _uses[row.id] = now


def store_uses(session: Session) -> None:
    """Store the times at which keys were last used."""
    with _uses_lock:
        uses = dict(_uses)
        _uses.clear()
    for key_id, moment in uses.items():
        newer = or_(ApiKeyRow.last_used_at.is_(None), ApiKeyRow.last_used_at < moment)
        session.execute(
            update(ApiKeyRow).where(ApiKeyRow.id == key_id, newer).values(last_used_at=moment),
            execution_options={"synchronize_session": False},
        )


def has_uses() -> bool:
    return bool(_uses)
