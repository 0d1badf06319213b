"""Sign-ins to the portal, in the format of the API.

A session has the rights of one API key. A caller sees only the sessions of its own keys.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    DisplaySessionCreate,
    DisplaySessionCreated,
    ErrorCode,
    Page,
    PortalSession,
    PortalSessionDeleted,
)
from tunesmith_schema.sessions import SessionKind
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.principal import Principal
from tunesmith_server.models import ApiKeyRow, SessionRow
from tunesmith_server.services import sessions


def list_own(session: Session, principal: Principal) -> Page[PortalSession]:
    """Return the sessions of the caller's keys, newest first."""
    rows = sessions.list_own(session, _own_keys(session, principal))
    shown = [_to_wire(row) for row in rows]
    return Page(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=False,
    )


def create_display(
    session: Session, principal: Principal, body: DisplaySessionCreate
) -> DisplaySessionCreated:
    """Create a read-only session for the caller's key."""
    row, secret = sessions.create(session, principal.key_id, "display", name=body.name)
    path = f"/portal/sign-in?link={secret}"
    return DisplaySessionCreated(**_to_wire(row).model_dump(), path=path)


def delete(session: Session, principal: Principal, session_id: str) -> PortalSessionDeleted:
    """End a session that has the rights of one of the caller's keys."""
    row = session.get(SessionRow, session_id)
    if row is None or row.key_id not in _own_keys(session, principal) or row.kind == "link":
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no session {session_id!r}",
            hint="GET /v1/sessions lists the sessions of your keys",
        )
    sessions.end(session, session_id)
    return PortalSessionDeleted(id=session_id)


def _own_keys(session: Session, principal: Principal) -> set[str]:
    """Return the ids of the caller's keys: all keys of the user, or the one key of a service."""
    if principal.user_id is None:
        return {principal.key_id}
    query = select(ApiKeyRow.id).where(ApiKeyRow.user_id == principal.user_id)
    return {*session.scalars(query), principal.key_id}


def _to_wire(row: SessionRow) -> PortalSession:
    return PortalSession(
        id=row.id,
        kind=cast(SessionKind, row.kind),
        name=row.name,
        key_id=row.key_id,
        created_at=int(row.created_at),
        last_seen_at=int(sessions.seen_at(row)),
        expires_at=int(sessions.expires_at(row)),
        user_agent=row.user_agent,
    )
